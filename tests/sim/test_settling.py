"""What a run that ends early does last: whatever fails then, all that can be settled is."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import anyio
import msgspec
import pytest
from anyio.lowlevel import checkpoint

from backends.ledgers.memory import MemoryLedger
from backends.sim.trainer import ScriptedTrainer
from protocols.errors import ConductorError, InvariantError, PortFailed
from protocols.inference import AbortReport
from protocols.ledger import LedgerEvent
from protocols.messages import DispatchId
from protocols.rollouts import RolloutLease
from protocols.training import StepReport
from tests.support.runs import run_config, run_scripted
from tests.support.scripted.workloads import ScriptedWorkloads, scripted_workloads


class DiskFull(Exception):
    pass


class FailingLedger(MemoryLedger):
    """Does ``instead`` of writing, once ``failing`` is set."""

    def __init__(self, instead: Callable[[], Awaitable[None]]) -> None:
        super().__init__()
        self.failing = False
        self._instead = instead

    async def append(self, events: tuple[LedgerEvent, ...]) -> None:
        if self.failing:
            await self._instead()
        await super().append(events)


async def is_full() -> None:
    await checkpoint()
    raise DiskFull


def later_and_later(lease: RolloutLease) -> float:
    return 1.0 + lease.prompt.position


def assert_nothing_left(scripted: ScriptedWorkloads) -> None:
    assert "policy.1/" in scripted.executor.aborted
    assert scripted.executor.live == frozenset()
    assert not scripted.payloads.held


@pytest.mark.parametrize("instead", [is_full, anyio.sleep_forever])
async def test_a_ledger_that_fails_does_not_keep_work_from_being_aborted(
    instead: Callable[[], Awaitable[None]],
) -> None:
    """Law 5: the intent could not be written, so nothing was aborted and nothing released."""
    scripted = scripted_workloads(100, duration_s=later_and_later)
    ledger = FailingLedger(instead)
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(run_scripted, run_config(steps=30, max_age=2), scripted, ledger)
            await anyio.sleep(5.5)
            ledger.failing = True
            scope.cancel()
    assert scope.cancelled_caught
    assert_nothing_left(scripted)


async def test_a_failure_of_settling_is_noted_on_what_ended_the_run() -> None:
    """W07: the note stood on the exception group, which nobody sees."""

    def failure(lease: RolloutLease) -> ConductorError | None:
        return PortFailed("an engine burns") if lease.prompt.position == 5 else None

    async def broken(prefix: str) -> AbortReport:
        await checkpoint()
        raise InvariantError(f"cannot abort {prefix}")

    scripted = scripted_workloads(100, failure=failure)
    scripted.executor.abort = broken
    with pytest.raises(PortFailed, match="an engine burns") as caught:
        await run_scripted(run_config(steps=30), scripted)
    assert "settling the run then failed with InvariantError: cannot abort policy.1/" in caught.value.__notes__
    assert not scripted.payloads.held


class ForgetfulTrainer(ScriptedTrainer):
    """Says that it consumed one group less than it did."""

    async def apply(self, dispatch_id: DispatchId) -> StepReport:
        report = await super().apply(dispatch_id)
        self._last = msgspec.structs.replace(report, consumed=report.consumed[1:])
        return self._last


async def test_a_step_that_consumed_other_groups_ends_the_run_and_leaves_nothing() -> None:
    """Law 2: its outcome cannot be recorded, not when it comes and not when the run is settled."""
    scripted = scripted_workloads(100)
    scripted = replace(scripted, trainer=ForgetfulTrainer(scripted.payloads))
    with pytest.raises(InvariantError, match="D0 consumed"):
        await run_scripted(run_config(max_age=1), scripted)
    assert_nothing_left(scripted)
