"""Law 7: disturbed at any one await or port call, a run ends within its deadlines with what was injected."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

import pytest

from backends.ledgers.memory import MemoryLedger
from backends.sim.prompts import ScriptedPrompts
from conductor.conductor import Conductor
from conductor.config import Deadlines, EvaluationConfig
from conductor.core.leases import LeaseTable
from conductor.ports import Workloads
from conductor.result import RunResult
from protocols.errors import DeadlineExceeded, ForeignCancellation
from protocols.grading import GraderPort
from protocols.inference import InferenceControllerPort
from protocols.ledger import LedgerPort
from protocols.prompts import PromptSourcePort
from protocols.rollouts import RolloutExecutorPort
from protocols.training import TrainerPort
from tests.support.await_probe import Injection, Planted, enumerate_awaits
from tests.support.port_faults import PortFaults, When, enumerate_port_calls
from tests.support.runs import open_backend_over, run_config, workloads_of
from tests.support.scripted.workloads import ScriptedWorkloads, scripted_workloads
from tests.support.trials import Outcome

P = TypeVar("P")

ABORT_S = 10.0
HANG_S = 20.0
DEADLINES = Deadlines(
    start=HANG_S, prompt=HANG_S, group=HANG_S, reward=HANG_S, train=HANG_S, publish=HANG_S, record=HANG_S, abort=ABORT_S
)
LONGEST_S = 20.0 + 3 * (HANG_S + 2 * ABORT_S)  # an undisturbed run, and three attempts of a group that hangs


class World:
    """One run's workloads and record, to look at when it is over."""

    def __init__(self) -> None:
        self.scripted: ScriptedWorkloads = scripted_workloads(
            6, duration_s=lambda lease: 1.0 + lease.prompt.position % 2, grade_s=0.5, publish_s=0.25
        )
        self.ledger = MemoryLedger()
        self.evaluated_on = ScriptedPrompts(2)

    async def run(self, faults: PortFaults | None = None) -> RunResult:
        workloads = replace(workloads_of(self.scripted, self.ledger), evaluation_prompts=self.evaluated_on)
        if faults is not None:
            workloads = _behind(faults, workloads)
        async with open_backend_over(self.scripted) as backend:
            evaluation = EvaluationConfig(every=1, samples=2, slots=1, on_failure="fail")
            cfg = run_config(max_age=1, deadlines=DEADLINES, evaluation=evaluation)
            return await Conductor.run(cfg, backend=backend, workloads=workloads)

    def assert_nothing_left(self, *, gap: bool = False) -> None:
        """Laws 1, 2 and 5: nothing plays on, nothing is trained twice, the books balance.

        Args:
            gap: The fault made the ledger lose an event and take later ones, which no ledger may do: its
                record is not looked at.
        """
        assert self.scripted.executor.live == frozenset()
        steps = [group.lease_id for batch in self.scripted.trainer.steps for group in batch.groups]
        assert len(steps) == len(set(steps))
        table = LeaseTable()
        for event in () if gap else self.ledger._events:
            table.apply(event)
        assert table.accounts.balanced
        assert table.sample_accounts.balanced


MADE_UP_FOR = {
    "PromptSourcePort.draw",
    "RolloutExecutorPort.generate",
    "GraderPort.grade",
    "TrainerPort.train_step",
    "TrainerPort.stage_weights",
}
"""Calls that are made again when they take too long."""


def _behind(faults: PortFaults, workloads: Workloads) -> Workloads:
    def through(port: type[P], implementation: P | None) -> P:
        assert implementation is not None
        return faults.wrap(port, implementation)

    return Workloads(
        prompts=through(PromptSourcePort, workloads.prompts),
        executor=through(RolloutExecutorPort, workloads.executor),
        inference=through(InferenceControllerPort, workloads.inference),
        grader=through(GraderPort, workloads.grader),
        trainer=through(TrainerPort, workloads.trainer),
        ledger=through(LedgerPort, workloads.ledger),
        trackers=(),
        evaluation_prompts=through(PromptSourcePort, workloads.evaluation_prompts),
    )


@pytest.fixture
def worlds() -> list[World]:
    return []


def disturbed(injection: Injection, worlds: list[World]) -> Iterator[tuple[str, Outcome[RunResult]]]:
    """Run a whole small run once for each of its awaits."""

    async def program() -> RunResult:
        worlds.append(World())
        return await worlds[-1].run()

    for number, site, outcome in enumerate_awaits(program, injection):
        yield f"{number}: {site}", outcome
    assert len(worlds) > 150, "the program has lost its awaits"


@pytest.mark.timeout(300)
def test_a_failure_at_any_await_comes_out_unchanged(worlds: list[World]) -> None:
    """Law 7, I13, MECHANISMS.md: the planted error is what is raised, not a group and not a cancellation."""
    for place, outcome in disturbed("fail", worlds):
        assert isinstance(outcome.error, Planted) or _counted(outcome), f"{place}: {outcome}"
        assert outcome.seconds < LONGEST_S, place
        worlds[-1].assert_nothing_left()


@pytest.mark.timeout(300)
def test_cancelling_the_scope_at_any_await_leaves_no_error(worlds: list[World]) -> None:
    """Law 7, W06: a scope's cancel ends the run as cancelled; only after the last await may it have finished."""
    for place, outcome in disturbed("cancel_scope", worlds):
        assert outcome.error is None, f"{place}: {outcome}"
        assert outcome.cancelled or isinstance(outcome.value, RunResult), place
        assert outcome.seconds < LONGEST_S, place
        worlds[-1].assert_nothing_left()
        assert not worlds[-1].scripted.payloads.held, place


@pytest.mark.timeout(300)
def test_a_native_cancel_of_the_callers_task_comes_out_as_cancelled(worlds: list[World]) -> None:
    """ORACLES.md: users wrap a run in ``asyncio.wait_for``; its cancel must come out, at any await."""
    for place, outcome in disturbed("cancel_main", worlds):
        assert isinstance(outcome.error, asyncio.CancelledError), f"{place}: {outcome}"
        assert outcome.seconds < LONGEST_S, place
        worlds[-1].assert_nothing_left()


@pytest.mark.timeout(300)
def test_a_native_cancel_of_any_task_is_never_a_clean_end(worlds: list[World]) -> None:
    """I18, MECHANISMS.md: anyio swallowed it, and a run came back as finished from 44 of 54 points."""
    for place, outcome in disturbed("cancel_task", worlds):
        if _ended_already(place):
            assert isinstance(outcome.value, RunResult), f"{place}: {outcome}"
            continue
        of_main = place.split(": ", 1)[1].startswith("main ")
        expected = asyncio.CancelledError if of_main else ForeignCancellation
        assert isinstance(outcome.error, expected), f"{place}: {outcome}"
        assert outcome.seconds < LONGEST_S, place
        worlds[-1].assert_nothing_left()


def _counted(outcome: Outcome[RunResult]) -> bool:
    """Whether what failed was one prompt of an evaluation, which is counted there and ends no run."""
    done = () if outcome.value is None else outcome.value.evaluations
    return len(done) == 2 and sum(record.metrics["eval/failed"] for record in done) == 1


def _ended_already(place: str) -> bool:
    """Whether the task was being cancelled because the run had come to its end: a second cancel adds nothing."""
    return "watchdog at" in place and place.endswith("in owned")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("when", ["before", "after", "hang", "hang_after"])
def test_a_failing_port_call_ends_the_run_or_is_made_up_for(when: When, worlds: list[World]) -> None:
    """Law 7 at the ports: request lost, reply lost, hang. What is retried may succeed; nothing may stay."""

    async def program(faults: PortFaults) -> RunResult:
        worlds.append(World())
        return await worlds[-1].run(faults)

    calls: set[str] = set()
    for number, call, outcome in enumerate_port_calls(program, when, lambda: Planted("at this call")):
        calls.add(call)
        place = f"{number}: {call}"
        if when in {"before", "after"}:
            assert isinstance(outcome.error, Planted) or _counted(outcome), f"{place}: {outcome}"
        elif outcome.error is not None:
            assert isinstance(outcome.error, DeadlineExceeded), f"{place}: {outcome}"
            assert call.replace("Port", "") in str(outcome.error), place
        else:
            assert call in MADE_UP_FOR, place
        assert outcome.seconds < LONGEST_S, place
        worlds[-1].assert_nothing_left(gap=call == "LedgerPort.append" and when in {"before", "hang"})
        assert not worlds[-1].scripted.payloads.held, place
    assert {"PromptSourcePort.draw", "TrainerPort.train_step", "LedgerPort.append"} <= calls
