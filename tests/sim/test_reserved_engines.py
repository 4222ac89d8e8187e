"""Evaluations on engines of their own: pinned to a version, while publishing and training go on."""

from typing import Any

import anyio
import pytest

from backends.sim.prompts import ScriptedPrompts
from backends.sim.settings import Config
from backends.sim.virtual_time import VirtualTimeLoop
from backends.sim.world import open_world
from conductor.conductor import Conductor
from conductor.config import Deadlines, EvaluationConfig, RunConfig
from conductor.core.publication import Publication
from conductor.ports import Workloads
from conductor.result import RunResult
from conductor.validation import find_problems, site_of
from protocols.aio import open_tasks
from protocols.errors import InvariantError, PortFailed
from protocols.faults import parse_plan
from protocols.inference import Sampling, WeightsManifest
from protocols.ledger import LedgerEvent
from protocols.messages import PayloadRef, RegistrationKey, WeightVersion
from protocols.sections import Section
from tests.support.runs import run_config

EVALUATES = "rollout/2"
"""The last of three engines; one evaluation takes 12 s, a train step one."""


def config(*, reserved: int | None = 1, engines: int = 3, on_failure: Any = "count", **fields: Any) -> RunConfig:
    evaluation = EvaluationConfig(every=2, size=12, slots=1, engines=reserved, on_failure=on_failure)
    return run_config(
        engines=engines,
        evaluation=evaluation,
        backend=Section(kind="sim"),
        reward=Section(kind="sim"),
        sampling=Sampling(max_tokens=1 << 20),
        deadlines=Deadlines(publish=30.0, abort=4.0, reconcile=60.0),
        **{"steps": 20, "max_age": 2, **fields},
    )


class Told:
    """What a run in a world of its own came to."""

    result: RunResult
    events: tuple[LedgerEvent, ...]
    owners: frozenset[str]
    unstopped: list[str]
    trace: list[str]
    most_weights = 0

    def loads(self, engine: str) -> list[tuple[float, int]]:
        """Return when an engine had loaded which version."""
        done = [line.split() for line in self.trace if f"Engine.load_weights of {engine} " in line and " <- " in line]
        return [(float(words[0]), int(words[-1])) for words in done if words[-2] != "raises"]

    def asked(self, engine: str) -> set[str]:
        """Return the leases and evaluations that an engine worked for."""
        called = [line.split() for line in self.trace if f"Engine.generate of {engine} " in line and " -> " in line]
        return {words[-1].split("/")[1] for words in called}


def run(cfg: RunConfig, faults: str = "") -> Told:
    told = Told()

    async def conduct() -> None:
        options = Config(sample="constant:1.0", train="1.0", publish="0.1", faults=parse_plan(faults))
        async with open_world(options, site_of(cfg), trace=True) as world:
            workloads = Workloads(
                prompts=world.prompts, ledger=world.ledger, trackers=(), evaluation_prompts=ScriptedPrompts(20)
            )

            async def watch() -> None:
                while True:
                    held = sum(owner.startswith("weights/") for owner in world.owners())
                    told.most_weights = max(told.most_weights, held)
                    await anyio.sleep(0.5)

            try:
                async with open_tasks() as tasks:
                    tasks.start_soon(watch)
                    told.result = await Conductor.run(cfg, backend=world.backend, workloads=workloads)
                    tasks.cancel_scope.cancel()
            finally:
                told.events, told.owners = await world.record(), world.owners()
                told.trace = world.observed.trace or []
        told.unstopped = world.observed.unstopped

    anyio.run(conduct, backend_options={"loop_factory": lambda: VirtualTimeLoop(0)})
    return told


def versions(told: Told) -> list[int]:
    return [record.step for record in told.result.evaluations]


@pytest.mark.parametrize("max_age", [0, 2])
def test_an_evaluation_on_its_own_engines_holds_nothing_up(max_age: int) -> None:
    """DESIGN.md: pinned to a version, on reserved engines; I70."""
    told = run(config(max_age=max_age))
    assert told.result.steps == 20
    loaded = told.loads(EVALUATES)
    assert [version for _, version in loaded] == versions(told), "it loads what it evaluates, and nothing else"
    others = told.loads("rollout/0")
    assert [version for _, version in others] == list(range(21)), "publishing goes on meanwhile"
    began, ended = loaded[0][0], loaded[1][0]
    assert len([at_s for at_s, _ in others if began < at_s < ended]) >= 5
    for record in told.result.evaluations:
        assert record.metrics["eval/version"] == record.step
        assert (record.metrics["eval/prompts"], record.metrics["eval/failed"]) == (12.0, 0.0)
    assert versions(told)[-1] == 20, "the last one is evaluated as well"
    assert 1 < told.most_weights <= 4, "served, staged, published and evaluated: older ones are released at once"
    assert not told.owners
    assert not told.unstopped


def test_each_engine_does_its_own_work_only() -> None:
    told = run(config())
    assert {name[0] for name in told.asked(EVALUATES)} == {"E"}
    assert {name[0] for engine in ("rollout/0", "rollout/1") for name in told.asked(engine)} == {"L"}


def test_the_training_is_the_same_as_without_it() -> None:
    """It is in none of the accounts, and at max_age 0 it changes no batch."""
    told = run(config(max_age=0))
    without = run(config(max_age=0, reserved=None, engines=2))
    assert told.result.accounts == without.result.accounts
    trained = [record.metrics["length/mean"] for record in told.result.metrics]
    assert trained == [record.metrics["length/mean"] for record in without.result.metrics]
    assert told.result.seconds < without.result.seconds / 2, "without engines of its own everything waits for it"


@pytest.mark.parametrize("faults", [f"preemption@Engine:{EVALUATES}@6+3", f"hang@Engine.load_weights:{EVALUATES}#2+0"])
def test_a_reserved_engine_that_fails_costs_the_training_nothing(faults: str) -> None:
    """Its weights are kept while it evaluates: when it comes back it goes on with the version that it is pinned to."""
    told, undisturbed = run(config(), faults), run(config())
    assert told.result.steps == 20
    assert [record.metrics["eval/version"] for record in told.result.evaluations] == versions(told)
    assert all(record.metrics["eval/failed"] == 0 for record in told.result.evaluations)
    trained = [at_s for at_s, _ in told.loads("rollout/0")]
    assert trained == pytest.approx([at_s for at_s, _ in undisturbed.loads("rollout/0")])
    assert not told.owners


def test_where_no_reserved_engine_is_left_the_evaluations_fail_and_the_run_goes_on() -> None:
    told = run(config(), f"preemption@Engine:{EVALUATES}@0.5+1000")
    assert told.result.steps == 20
    assert told.result.evaluations == ()
    assert told.result.failures["evaluation"] >= 1
    with pytest.raises(PortFailed, match=r"evaluation of v\d+ failed: .*rollout/2 is lost"):
        run(config(on_failure="fail"), f"preemption@Engine:{EVALUATES}@0.5+1000")


@pytest.mark.parametrize(("engines", "reserved"), [(1, 1), (2, 2), (2, 5)])
def test_the_training_keeps_an_engine(engines: int, reserved: int) -> None:
    problems = find_problems(config(engines=engines, reserved=reserved), given={"prompts", "evaluation.prompts"})
    (problem,) = [one for one in problems if one.field == "evaluation.engines"]
    assert f"the run has {engines} engine" in problem.why


def test_engines_that_are_handed_over_cannot_be_reserved() -> None:
    given = {"prompts", "evaluation.prompts", "engine"}
    (problem,) = [one for one in find_problems(config(), given=given) if one.field == "evaluation.engines"]
    assert "handed over" in problem.why


def manifest(version: int) -> WeightsManifest:
    payload = PayloadRef(owner=f"v{version}/", key="weights")
    return WeightsManifest(version=WeightVersion(version), payload=payload, tensors=1, size_bytes=1)


def test_what_is_pinned_is_kept_until_nobody_needs_it() -> None:
    publication = Publication(RegistrationKey())
    with pytest.raises(InvariantError):
        publication.pin()
    first, second, third = manifest(0), manifest(1), manifest(2)
    assert publication.confirm(first) is None
    assert publication.pin() is first
    with pytest.raises(InvariantError):
        publication.pin()
    assert publication.unpin() is None, "it is served"
    publication.pin()
    assert publication.confirm(second) is None
    assert publication.confirm(third) is second
    assert publication.unpin() is first
