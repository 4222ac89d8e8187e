"""What a job is told where the package that an adapter needs is not installed."""

import sys

import pytest

from backends.graders import reasoning_gym as grader
from backends.prompts import datasets, reasoning_gym
from protocols.errors import Problem
from protocols.sections import Site

SITE = Site(job_dir="/")


@pytest.fixture
def _nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Python find neither package: an entry of None is one that was looked for and not found."""
    for name in ("datasets", "reasoning_gym"):
        monkeypatch.setitem(sys.modules, name, None)


MISSING = {
    "'reasoning_gym'": ("reasoning_gym", "reasoning_gym", "reasoning"),
    "'datasets'": ("datasets", "datasets", "datasets"),
}


@pytest.mark.usefixtures("_nothing_installed")
@pytest.mark.parametrize(
    ("found", "field"),
    [
        (lambda: reasoning_gym.check(reasoning_gym.Config(dataset="chain_sum"), SITE), "prompts.kind"),
        (lambda: grader.check(grader.Config(), SITE), "reward.kind"),
        (lambda: datasets.check(datasets.Config(path="org/data"), SITE), "prompts.kind"),
    ],
)
def test_a_missing_package_is_a_problem_with_the_line_that_installs_it(found, field: str) -> None:
    problems: list[Problem] = list(found())
    (problem,) = problems
    kind, library, extra = MISSING[str(problem.value)]
    assert str(problem) == f"{field} = '{kind}': it needs the module '{library}'; pip install 'conductor-rl[{extra}]'"
