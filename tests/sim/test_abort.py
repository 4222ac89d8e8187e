"""Aborts that are not confirmed at once, that nobody confirms, and that are cut in the middle."""

import asyncio
import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from backends.ledgers.memory import MemoryLedger
from backends.sim.grader import alternating
from backends.sim.virtual_time import run_virtual
from conductor.conductor import Conductor
from conductor.config import CheckpointConfig, Deadlines
from conductor.core.lease import State
from conductor.past import rebuild
from protocols.errors import BudgetExhausted, ConductorError, EngineBusy, PortFailed, Stalled, Transient
from protocols.grading import Grade, GradeFault, GradeRequest
from protocols.inference import AbortReport
from protocols.ledger import AbortConfirmed, Aborting
from protocols.pauses import pause_s
from protocols.rollouts import RolloutLease
from protocols.tracking import StepRecord
from protocols.training import BatchLease, StepReport
from tests.support.lives import Lives, holds
from tests.support.runs import open_backend_over, run_config, run_scripted, workloads_of
from tests.support.scripted.workloads import ScriptedWorkloads, scripted_workloads


def busy_once(lease: RolloutLease) -> ConductorError | None:
    failing = lease.prompt.position == 1 and lease.attempt == 0
    return EngineBusy(engine="e", waiting=1) if failing else None


def reluctant(scripted: ScriptedWorkloads, answer: Callable[[int], AbortReport]) -> list[float]:
    """Let the executor answer its aborts as ``answer`` says, by their number from 1; returns the times of asking."""
    asked: list[float] = []
    abort = scripted.executor.abort

    async def reluctantly(prefix: str) -> AbortReport:
        asked.append(anyio.current_time())
        await abort(prefix)
        return answer(len(asked))

    scripted.executor.abort = reluctantly
    return asked


def unconfirmed(prefix: str) -> AbortReport:
    return AbortReport(unconfirmed=frozenset({prefix}))


async def test_an_abort_is_tried_until_it_is_confirmed_and_the_run_goes_on() -> None:
    """Issue C: what stays unconfirmed stays ``aborting`` and is tried again, ever more slowly."""
    scripted, ledger = scripted_workloads(100, failure=busy_once), MemoryLedger()
    asked = reluctant(scripted, lambda number: unconfirmed("e1") if number < 4 else AbortReport())
    result = await run_scripted(run_config(steps=3, batch_groups=2), scripted, ledger)
    assert result.accounts.committed == 6
    pauses = [later - earlier for earlier, later in itertools.pairwise(asked)]
    assert pauses == pytest.approx([pause_s(tries, "L1") for tries in (1, 2, 3)])
    events = await ledger.replay()
    assert sum(isinstance(event, Aborting) for event in events) == 1
    assert sum(isinstance(event, AbortConfirmed) for event in events) == 1


async def test_an_engine_that_goes_on_is_believed_and_not_the_executor() -> None:
    """I46: the live set comes from the engines themselves."""
    scripted = scripted_workloads(100, failure=busy_once)
    asked = reluctant(scripted, lambda _: AbortReport(confirmed=frozenset({"policy.1/L1/0/0/0"})))

    async def live_requests() -> frozenset[str]:
        await anyio.lowlevel.checkpoint()
        return frozenset({"policy.1/L1/0/0/0"} if len(asked) < 3 else ())

    scripted.inference.live_requests = live_requests
    await run_scripted(run_config(steps=3), scripted)
    assert len(asked) == 3


async def test_an_engine_that_does_not_answer_confirms_nothing() -> None:
    """Nobody knows what it runs, so its leases stay ``aborting``."""
    scripted = scripted_workloads(100, failure=busy_once)
    silent = 2

    async def live_requests() -> frozenset[str]:
        nonlocal silent
        await anyio.lowlevel.checkpoint()
        silent -= 1
        if silent >= 0:
            raise Transient("engine e does not answer")
        return frozenset()

    scripted.inference.live_requests = live_requests
    result = await run_scripted(run_config(steps=3), scripted)
    assert result.accounts.committed == 6


async def test_an_aborting_lease_keeps_its_slot() -> None:
    """DESIGN.md: the slot of what may still run is not lent again."""
    running: list[set[str]] = []

    def watch(lease: RolloutLease) -> float:
        running.append({request.split("/")[1] for request in scripted.executor.live})
        return 1.0

    scripted, ledger = scripted_workloads(100, failure=busy_once, duration_s=watch), MemoryLedger()
    reluctant(scripted, lambda number: unconfirmed("e1") if number < 6 else AbortReport())
    result = await run_scripted(run_config(steps=4, batch_groups=2, max_age=3, slots=2), scripted, ledger)
    events = await ledger.replay()
    first = next(index for index, event in enumerate(events) if isinstance(event, Aborting))
    last = next(index for index, event in enumerate(events) if isinstance(event, AbortConfirmed))
    for index in range(first, last):
        table = rebuild(events[: index + 1])
        assert table.running <= 2
        assert table["L1"].state is State.ABORTING  # type: ignore[index]
    assert last - first > 5, "nothing went on meanwhile"
    assert max(map(len, running)) <= 2
    assert max(record.metrics["groups/aborting"] for record in result.metrics) == 1.0


async def test_what_nobody_ever_confirms_ends_the_run_with_the_numbers() -> None:
    """I17: every wait is bounded and named."""
    scripted = scripted_workloads(100, failure=busy_once)
    reluctant(scripted, lambda _: unconfirmed("policy.1/L1/0/0/0"))
    with pytest.raises(Stalled, match=r"L1 was aborted \d+ times in .* policy.1/L1/0/0/0 may still run") as caught:
        await run_scripted(run_config(steps=3, deadlines=Deadlines(reconcile=60.0)), scripted)
    assert any("may still run" in note for note in caught.value.__notes__)


async def test_at_the_end_of_a_run_what_is_unconfirmed_is_reported_and_stays_aborting() -> None:
    """DESIGN.md: at restart the ledger says what is owed."""
    scripted, ledger = scripted_workloads(100, duration_s=lambda _: math.inf), MemoryLedger()
    reluctant(scripted, lambda _: unconfirmed("e1"))
    with anyio.move_on_after(5.0) as scope:
        await run_scripted(run_config(steps=3), scripted, ledger)
    assert scope.cancelled_caught
    table = rebuild(await ledger.replay())
    assert {lease.state for lease in table} == {State.ABORTING}
    assert table.accounts.balanced
    assert not scripted.payloads.held


async def test_an_unconfirmed_abort_at_the_end_is_noted_on_what_ended_the_run() -> None:
    """The original error goes on, unchanged, with the abort's own failure attached."""

    def failure(lease: RolloutLease) -> ConductorError | None:
        return PortFailed("an engine burns") if lease.prompt.position == 5 else None

    scripted = scripted_workloads(100, failure=failure)
    reluctant(scripted, lambda _: unconfirmed("e1"))
    with pytest.raises(PortFailed, match="an engine burns") as caught:
        await run_scripted(run_config(steps=30, max_age=1), scripted)
    assert any("e1 may still run" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("second_after_s", [0.1, 0.6, 1.5])
async def test_a_second_native_cancel_cuts_the_abort_and_leaves_a_record_to_go_on_with(second_after_s: float) -> None:
    """ORACLES.md: a shield stops scope cancellation, not a second ``Task.cancel``."""
    scripted, ledger = scripted_workloads(100, duration_s=lambda lease: 1.0 + lease.prompt.position), MemoryLedger()
    abort = scripted.executor.abort

    async def slowly(prefix: str) -> AbortReport:
        await anyio.sleep(1.0)
        return await abort(prefix)

    scripted.executor.abort = slowly
    task = asyncio.get_running_loop().create_task(run_scripted(run_config(steps=30, max_age=2), scripted, ledger))
    await anyio.sleep(5.5)
    task.cancel()
    await anyio.sleep(second_after_s)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    table = rebuild(await ledger.replay())
    assert table.accounts.balanced
    assert all(lease.state in {State.ABORTING, State.ABORTED, State.CLAIMED} for lease in table)


class BrokenTracker:
    """Fails when it is told of the second step."""

    async def log(self, record: StepRecord) -> None:
        await anyio.lowlevel.checkpoint()
        if record.step == 2:
            raise ZeroDivisionError

    async def rewind(self, step: int) -> int:
        await anyio.lowlevel.checkpoint()
        return step


async def test_logging_that_fails_after_a_commit_settles_exactly_what_is_lent() -> None:
    """DESIGN.md, windows: after the lease was minted, something beside the work fails."""
    scripted, ledger = scripted_workloads(100), MemoryLedger()
    workloads = replace(workloads_of(scripted, ledger), trackers=(BrokenTracker(),))
    async with open_backend_over(scripted) as backend:
        with pytest.raises(ZeroDivisionError):
            await Conductor.run(run_config(steps=5, max_age=2), backend=backend, workloads=workloads)
    table = rebuild(await ledger.replay())
    assert table.accounts.committed == 4
    assert table.accounts.balanced
    assert {lease.state for lease in table} == {State.ABORTED}
    assert not table.open_dispatches()
    assert not scripted.payloads.held


@pytest.mark.parametrize("fails", ["fetching", "converting"])
async def test_a_batch_that_cannot_be_made_is_given_back_and_nothing_else(fails: str) -> None:
    """DESIGN.md, windows: between claim and receipt."""
    scripted, ledger = scripted_workloads(100), MemoryLedger()
    get = scripted.payloads.get

    async def broken(ref: object) -> object:
        if len(scripted.trainer.steps) == 1:
            raise Transient("the store is down") if fails == "fetching" else ZeroDivisionError
        return await get(ref)  # type: ignore[arg-type]

    scripted.payloads.get = broken  # type: ignore[method-assign,assignment]
    with pytest.raises(BudgetExhausted if fails == "fetching" else ZeroDivisionError):
        await run_scripted(run_config(steps=5, max_age=2, retries=1), scripted, ledger)
    table = rebuild(await ledger.replay())
    assert table.accounts.committed == 2
    assert {lease.state for lease in table} == {State.ABORTED}
    assert scripted.trainer.discarded == (2 if fails == "fetching" else 1)


def test_a_run_that_was_cut_in_its_abort_goes_on_when_it_is_resumed(tmp_path: Path) -> None:
    """What the ledger owes is readmitted; the run ends as if nothing had been."""
    cfg = run_config(steps=4, max_age=1, checkpoint=CheckpointConfig(every=1))
    lives = Lives(cfg=cfg, build=lambda: scripted_workloads(100, failure=busy_once), folder=tmp_path)
    run_virtual(lambda: lives.live(holds(30)))
    assert any(isinstance(event, Aborting) for event in lives.events)
    result = run_virtual(lives.live)
    assert result is not None
    assert (result.steps, result.accounts.open) == (4, 0)


def no_reward_for_the_first(request: GradeRequest) -> list[Grade | GradeFault]:
    if request.prompt.position == 0:
        return [GradeFault(kind="raised", detail="")] * len(request.samples)
    return alternating(request)


async def test_what_a_dropped_group_stored_goes_with_it_also_where_the_executor_knows_nothing_of_it() -> None:
    """I73: an executor that was launched anew confirms the abort of what it never heard of, and releases nothing."""
    scripted = scripted_workloads(100, rewards=no_reward_for_the_first)
    held: list[bool] = []

    async def forgetful(prefix: str) -> AbortReport:
        await anyio.lowlevel.checkpoint()
        return AbortReport()

    async def watched(batch: BatchLease) -> StepReport:
        held.append(any(owner.startswith("policy.1/L0/") for owner, _ in scripted.payloads.held))
        return await step(batch)

    step, scripted.trainer.train_step = scripted.trainer.train_step, watched  # type: ignore[method-assign]
    scripted.executor.abort = forgetful  # type: ignore[method-assign]
    result = await run_scripted(run_config(steps=2, max_dropped=1.0), scripted)
    assert result.dropped == {"too_few_rewards": 1}
    assert held == [False, False]
