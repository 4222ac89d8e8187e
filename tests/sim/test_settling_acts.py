"""The acts with which a run ends: each is tried whatever became of the others, and each failure is told."""

from dataclasses import replace

import anyio
import pytest
from anyio.lowlevel import checkpoint

from backends.ledgers.memory import MemoryLedger
from backends.sim.trainer import ScriptedTrainer
from conductor.core.lease import State
from conductor.past import rebuild
from protocols.errors import ConductorError, PortFailed
from protocols.inference import AbortReport
from protocols.ledger import AbortConfirmed, Committed, LedgerEvent
from protocols.messages import DispatchId
from protocols.rollouts import RolloutLease
from protocols.training import BatchLease, StepReport
from tests.support.runs import run_config, run_scripted
from tests.support.scripted.workloads import ScriptedWorkloads, scripted_workloads

ENDS_AT_S = 2.5
"""One batch is being trained then, and four groups are generated."""


def two_quick(lease: RolloutLease) -> float:
    return 1.0 if lease.prompt.position < 2 else 100.0


class Broken(Exception):
    pass


class Acts:
    """Workloads of a run, and what is done with them when it ends; acts in ``broken`` fail once they are begun."""

    def __init__(self, scripted: ScriptedWorkloads, *broken: str) -> None:
        self.scripted = scripted
        self.done: list[str] = []
        self._broken = broken
        self._abort = self.scripted.executor.abort
        self._release = self.scripted.payloads.release
        self._outcome = self.scripted.trainer.outcome
        self.scripted.executor.abort = self.abort
        self.scripted.payloads.release = self.release
        self.scripted.trainer.outcome = self.outcome

    async def abort(self, prefix: str) -> AbortReport:
        await self._note("abort")
        return await self._abort(prefix)

    async def release(self, owner: str) -> None:
        if anyio.current_time() >= ENDS_AT_S:
            await self._note("release weights" if owner.startswith("weights/") else "release groups")
        await self._release(owner)

    async def outcome(self, dispatch_id: DispatchId) -> StepReport | None:
        await self._note("outcome")
        return await self._outcome(dispatch_id)

    async def _note(self, act: str) -> None:
        await checkpoint()
        self.done.append(act)
        if act in self._broken:
            raise Broken(act)


async def end(scripted: ScriptedWorkloads, ledger: MemoryLedger) -> None:
    with anyio.move_on_after(ENDS_AT_S) as scope:
        await run_scripted(run_config(steps=5, max_age=2), scripted, ledger)
    assert scope.cancelled_caught


@pytest.mark.parametrize("fails", ["abort", "release groups", "release weights", "outcome", "nothing"])
async def test_every_act_is_tried_whatever_became_of_the_others(fails: str) -> None:
    """Law 5: the first failure used to be the last act."""
    acts, ledger = Acts(scripted_workloads(100, duration_s=two_quick, step_s=10.0), fails), MemoryLedger()
    await end(acts.scripted, ledger)
    assert {"abort", "release groups", "release weights", "outcome"} <= set(acts.done)
    events = await ledger.replay()
    table = rebuild(events)
    stopped = fails in {"nothing", "release weights", "outcome"}
    assert any(isinstance(event, AbortConfirmed) for event in events) == stopped
    expected = {State.ABORTED if stopped else State.ABORTING} | ({State.CLAIMED} if fails == "outcome" else set())
    assert {lease.state for lease in table} == expected
    assert acts.scripted.trainer.discarded == (fails != "outcome")


class SilentTrainer(ScriptedTrainer):
    """Takes its step, and never says so."""

    async def train_step(self, batch: BatchLease) -> StepReport:
        await super().train_step(batch)
        await anyio.sleep_forever()
        raise AssertionError


async def test_a_step_that_was_taken_unseen_is_written_down() -> None:
    """Law 2: it would be trained once more after a resume."""
    scripted = scripted_workloads(100)
    ledger = MemoryLedger()
    await end(replace(scripted, trainer=SilentTrainer(scripted.payloads, step_s=0.5)), ledger)
    events = await ledger.replay()
    assert [event.version for event in events if isinstance(event, Committed)] == [1]
    assert rebuild(events).accounts.committed == 2


class LedgerThatFillsUp(MemoryLedger):
    """Takes a number of appends when the run ends: intents, the outcome of the step, intents again, confirmations."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self._room = room

    async def append(self, events: tuple[LedgerEvent, ...]) -> None:
        if anyio.current_time() >= ENDS_AT_S:
            self._room -= 1
        if self._room < 0:
            await checkpoint()
            raise OSError("the disk is full")
        await super().append(events)


@pytest.mark.parametrize(("first", "room"), [("abort", 1), ("abort", 2), ("release weights", 3)])
async def test_the_first_failure_of_settling_is_the_one_that_is_told(first: str, room: int) -> None:
    """W07: it was replaced by what failed after it, and because of it. That is told with it, not in the log alone."""

    def failure(lease: RolloutLease) -> ConductorError | None:
        return PortFailed("an engine burns") if lease.prompt.position == 2 else None

    def duration(lease: RolloutLease) -> float:
        return ENDS_AT_S if lease.prompt.position == 2 else two_quick(lease)

    scripted = scripted_workloads(100, duration_s=duration, failure=failure, step_s=10.0)
    acts = Acts(scripted, first)
    with pytest.raises(PortFailed, match="an engine burns") as caught:
        await run_scripted(run_config(steps=5, max_age=2), scripted, LedgerThatFillsUp(room))
    (note,) = caught.value.__notes__
    told, *later = note.splitlines()
    assert told == f"settling the run then failed with Broken: {first}"
    assert later
    assert set(later) == {"then OSError: the disk is full"}
    assert "release weights" in acts.done
