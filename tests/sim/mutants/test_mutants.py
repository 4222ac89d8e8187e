"""Planted bugs: each is found by a test, or stands in the list of survivors with its reason."""

import ast
from collections import Counter
from collections.abc import Generator
from importlib import import_module

import pytest

from conductor.core.publication import Publication
from protocols.messages import RegistrationKey
from tests.sim.mutants.harvest import Harvest, open_harvest
from tests.sim.mutants.planting import functions_of, plant, source_of
from tests.sim.mutants.rules import RULES, mutants
from tests.sim.mutants.survivors import SURVIVORS
from tests.sim.mutants.targets import TARGETS

SOURCE = """
class Door:
    async def enter(self, age: int) -> int:
        with bounded_shield(1.0):
            try:
                await self.gate.pass_through()
            finally:
                self.gate.release()
        return age + 1 if age < self.most else 0
"""


@pytest.fixture(scope="module")
def harvest(request: pytest.FixtureRequest) -> Generator[Harvest]:
    here = [item for item in request.session.items if item.path == request.path]
    chosen = [getattr(item, "callspec", None) for item in here]
    modules = [spec.params["target"] for spec in chosen if spec is not None]
    with open_harvest(modules) as opened:
        yield opened


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("target", TARGETS)
def test_every_planted_bug_is_found_or_explained(target: str, harvest: Harvest) -> None:
    """Issue D: an unexplained survivor is a hole, and a survivor that is found after all is no survivor."""
    verdicts = harvest.of(target)
    survived = {verdict.mutant for verdict in verdicts if verdict.survived}
    explained = SURVIVORS.get(target, {}).keys()
    unexplained = [f"no test finds: {mutant}" for mutant in sorted(survived - explained)]
    outdated = [f"explained, and found or not there: {mutant}" for mutant in sorted(explained - survived)]
    if unexplained or outdated:
        pytest.fail("\n".join([*unexplained, *outdated]), pytrace=False)


def test_at_least_thirty_bugs_are_planted_and_some_by_every_rule() -> None:
    """Issue D; a rule whose pattern is not written any more finds nothing and says nothing."""
    rules = Counter(mutant.rule for target in TARGETS for mutant in mutants(source_of(target)))
    assert rules.keys() == {"row", *RULES}
    assert rules.total() >= 30


def test_what_is_explained_is_about_targets() -> None:
    assert SURVIVORS.keys() <= TARGETS.keys()
    assert all(why.strip() for explained in SURVIVORS.values() for why in explained.values())


def test_each_rule_spoils_what_it_says_and_nothing_else() -> None:
    spoiled = {mutant.name: ast.unparse(mutant.tree) for mutant in mutants(SOURCE)}
    whole = ast.unparse(ast.parse(SOURCE))
    changed = {name: _difference(whole, text) for name, text in spoiled.items()}
    assert changed == {
        "Door.enter: no shield: bounded_shield(1.0)": "with __import__('anyio').move_on_after(1.0):",
        "Door.enter: no finally: self.gate.release()": "await self.gate.pass_through()",
        "Door.enter: no call: await self.gate.pass_through()": "pass",
        "Door.enter: no call: self.gate.release()": "pass",
        "Door.enter: no block: with bounded_shield(1.0):": "try:",
        "Door.enter: bound: age < self.most": "return age + 1 if age <= self.most else 0",
        "Door.enter: one: age + 1": "return age if age < self.most else 0",
        "Door.enter: not: age < self.most": "return age + 1 if not age < self.most else 0",
    }


def _difference(whole: str, spoiled: str) -> str:
    """Return the first line that is another one, without its indentation."""
    pairs = zip(whole.splitlines(), spoiled.splitlines(), strict=False)
    return next(after.strip() for before, after in pairs if before != after)


def test_names_of_mutants_do_not_depend_on_lines() -> None:
    """The list of survivors must outlive edits of the code around them."""
    moved = SOURCE.replace("class Door", "import anyio\n\n\nclass Door").replace(
        "await", "# why\n                await"
    )
    assert [mutant.name for mutant in mutants(moved)] == [mutant.name for mutant in mutants(SOURCE)]


def test_what_is_planted_is_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise every mutant would survive, or die of the planting."""
    module = "conductor.core.publication"
    served = functions_of(import_module(module))["Publication.served"]
    monkeypatch.setattr(served, "__code__", served.__code__)  # and so put back afterwards
    assert Publication(RegistrationKey()).served is None
    (mutant,) = (one for one in mutants(source_of(module)) if one.function == "Publication.served")
    plant(module, mutant)
    with pytest.raises(AttributeError, match="NoneType"):
        Publication(RegistrationKey()).served  # noqa: B018 - a property
