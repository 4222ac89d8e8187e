"""What adapters say of a job that no file describes so, or on another system: to the letter."""

import sys
from collections.abc import Sequence

import pytest

from backends import processes, ray
from backends.trainers import torch as trainer
from backends.trainers.torch.options import ScheduleConfig
from conductor.config import EvaluationConfig, FleetConfig, RoleConfig
from conductor.validation import find_problems
from protocols.adapters import missing_module
from protocols.errors import Problem
from protocols.sections import Section, Site
from tests.unit.config.test_validation import STUBS, job

SITE = Site(job_dir="/")
NO_MODEL = "model: there is nothing to train; add a [model] section"


def told(problems: Sequence[Problem]) -> list[str]:
    return [str(problem) for problem in problems]


def test_a_trainer_of_code_may_lack_what_a_job_has() -> None:
    by = "'linear' falls towards it, and the run has no last step"
    assert told(trainer.check(trainer.Config(schedule=ScheduleConfig(kind="linear")), SITE)) == [
        f"train.schedule.steps: {by}; give a number of steps",
        NO_MODEL,
    ]
    mend = "give a number of tokens, such as sampling.max_tokens"
    assert told(trainer.check(trainer.Config(aggregation="constant"), SITE)) == [
        f"train.aggregation_length: aggregation = 'constant' divides by it; {mend}",
        NO_MODEL,
    ]


def test_only_linux_ends_what_a_killed_run_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    why = "only Linux ends the workers of a killed run; set it to 'inproc'"
    assert f"backend.kind = 'processes': {why}" in told(processes.check(processes.Config(), SITE))
    assert f"backend.kind = 'ray': {why}" in told(ray.check(ray.Config(), SITE))


def test_engines_that_code_hands_over_are_not_divided() -> None:
    evaluation = EvaluationConfig(engines=1, size=1, prompts=Section(kind=f"{STUBS}:good"))
    assert told(find_problems(job(evaluation=evaluation, engines=2), given=("engine",))) == [
        "evaluation.engines = 1: the engines were handed over in code; leave it out"
    ]


def test_the_only_engine_cannot_only_evaluate() -> None:
    evaluation = EvaluationConfig(engines=1, size=1, prompts=Section(kind=f"{STUBS}:good"))
    why = "the run has 1 engine, and the training needs at least one; leave it out, or give more engines"
    assert told(find_problems(job(evaluation=evaluation))) == [f"evaluation.engines = 1: {why}"]


def test_a_trainer_that_knows_no_ranks_is_one_worker() -> None:
    fleet = FleetConfig(roles={"policy": RoleConfig(instances=2)})
    why = f"several workers of the trainer '{STUBS}:good' do not train one policy; leave it out"
    assert told(find_problems(job(fleet=fleet))) == [f"fleet.roles.policy.instances = 2: {why}"]


def test_a_resume_needs_a_folder() -> None:
    mend = "without a folder there is nothing to go on with; name the folder of the run"
    assert told(find_problems(job(run_dir=None), resume=True)) == [f"run_dir: {mend}"]


def test_an_adapter_whose_library_is_missing_says_how_to_install_it() -> None:
    problem = missing_module("engine.kind", "torch", ModuleNotFoundError("No module named 'torch'", name="torch.nn"))
    why = "it needs the module 'torch', which is not installed; pip install 'conductor-rl[torch]'"
    assert str(problem) == f"engine.kind = 'torch': {why}"
