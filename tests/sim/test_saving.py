"""When checkpoints are written and which of them stay; what a cancel in the middle of one does."""

from dataclasses import replace
from pathlib import Path

import anyio
import msgspec
import pytest

from backends.ledgers.memory import MemoryLedger
from conductor import checkpoints
from conductor.config import CheckpointConfig, Deadlines, RunConfig
from protocols.errors import DeadlineExceeded
from protocols.ledger import Checkpointed, Committed, Compacted, LedgerEvent
from protocols.messages import WeightVersion
from protocols.training import CheckpointRequest
from tests.support.runs import run_config, run_scripted
from tests.support.scripted.chained import ChainedTrainer
from tests.support.scripted.workloads import ScriptedWorkloads, scripted_workloads


class SlowTrainer(ChainedTrainer):
    """Takes four seconds more to save, and counts how often it began to."""

    saves = 0

    async def save(self, request: CheckpointRequest) -> WeightVersion:
        self.saves += 1
        await anyio.sleep(4.0)
        return await super().save(request)


def slow() -> ScriptedWorkloads:
    scripted = scripted_workloads(100)
    return replace(scripted, trainer=SlowTrainer(scripted.payloads))


def saving(folder: Path, *, steps: int = 5, **checkpoint: int) -> RunConfig:
    return run_config(steps=steps, run_dir=str(folder), checkpoint=CheckpointConfig(**checkpoint))


async def saved(ledger: MemoryLedger) -> list[int]:
    """Return the versions whose checkpoints the record knows to be complete."""
    return [event.version for event in await ledger.replay() if isinstance(event, Checkpointed)]


async def test_checkpoints_are_written_when_the_job_says_and_at_the_end(tmp_path: Path) -> None:
    ledger = MemoryLedger()
    await run_scripted(saving(tmp_path, every=2), slow(), ledger)
    assert await saved(ledger) == [2, 4, 5]


async def test_only_those_that_are_kept_stay(tmp_path: Path) -> None:
    """I73: a disk that fills up ends a run that has trained for a week."""
    await run_scripted(saving(tmp_path, every=1, keep=2), slow())
    there = checkpoints.complete(checkpoints.folder_of(str(tmp_path)))
    assert list(there) == [4, 5]


class CountingLedger(MemoryLedger):
    """Counts how often it was summed up."""

    compacted = 0

    async def compact(self, events: tuple[LedgerEvent, ...]) -> None:
        self.compacted += 1
        await super().compact(events)


@pytest.mark.parametrize(("compact_events", "times"), [(0, 0), (1, 2), (100_000, 0)])
async def test_the_record_is_summed_up_when_the_job_says(tmp_path: Path, compact_events: int, times: int) -> None:
    ledger = CountingLedger()
    await run_scripted(saving(tmp_path, steps=2, every=1, compact_events=compact_events), slow(), ledger)
    assert ledger.compacted == times
    assert any(isinstance(event, Compacted) for event in await ledger.replay()) == bool(times)


async def test_a_cancel_in_the_middle_of_a_checkpoint_lets_it_be_finished(tmp_path: Path) -> None:
    """I57: a signal cut what was being written, and the run had nothing to go on from."""
    scripted, ledger = slow(), MemoryLedger()
    with anyio.move_on_after(4.0) as scope:  # the first step is closed at 2 s, and saved at 6.5 s
        await run_scripted(saving(tmp_path, every=1), scripted, ledger)
    assert scope.cancelled_caught
    assert isinstance(scripted.trainer, SlowTrainer)
    assert scripted.trainer.saves == 1, "it was begun anew"
    assert await saved(ledger) == [1]
    assert list(checkpoints.complete(checkpoints.folder_of(str(tmp_path)))) == [1]


class SlowToCommit(MemoryLedger):
    """Takes a while to write down that a step happened."""

    def __init__(self, slow: WeightVersion) -> None:
        super().__init__()
        self._slow, self.committing = slow, anyio.Event()

    async def append(self, events: tuple[LedgerEvent, ...]) -> None:
        await super().append(events)
        if any(isinstance(event, Committed) and event.version == self._slow for event in events):
            self.committing.set()
            await anyio.sleep(1.0)


@pytest.mark.parametrize(("version", "kept"), [(2, []), (4, [2])])
async def test_stopped_while_a_step_is_written_down_it_saves_nothing_under_the_name_of_the_one_before(
    tmp_path: Path, version: int, kept: list[int]
) -> None:
    """I57: a signal between the trainer's step and its record made a checkpoint that was neither, and failed."""
    scripted, ledger = slow(), SlowToCommit(WeightVersion(version))
    async with anyio.create_task_group() as group:
        group.start_soon(run_scripted, saving(tmp_path, every=2), scripted, ledger)
        await ledger.committing.wait()
        group.cancel_scope.cancel()
    assert "checkpoint.failed" not in (tmp_path / "log.jsonl").read_text()
    assert await saved(ledger) == kept
    assert list(checkpoints.complete(checkpoints.folder_of(str(tmp_path)))) == kept


async def test_a_checkpoint_that_takes_too_long_ends_the_run_by_its_name(tmp_path: Path) -> None:
    """I17: the shield that lets it be finished is bounded."""
    cfg = msgspec.structs.replace(saving(tmp_path, every=1), deadlines=Deadlines(checkpoint=3.0))
    with pytest.raises(DeadlineExceeded, match=r"the checkpoint of v1|Trainer\.save"):
        await run_scripted(cfg, slow())
