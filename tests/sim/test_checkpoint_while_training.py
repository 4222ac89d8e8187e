"""Training goes on while a checkpoint is written: one at a time, whole or not at all, and waited for at the end."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from backends.ledgers.memory import MemoryLedger
from backends.sim.prompts import ScriptedPrompts
from backends.sim.trainer import ScriptedTrainer
from backends.sim.virtual_time import run_virtual
from conductor.config import CheckpointConfig, Deadlines, RunConfig
from protocols.errors import BudgetExhausted, DeadlineExceeded, PortFailed, SnapshotLost
from protocols.ledger import CheckpointBegun, Checkpointed, LedgerEvent, Stepped
from protocols.messages import WeightVersion
from protocols.training import CheckpointRequest
from tests.sim.test_resume import TROUBLED, assert_same, failing, replace_checkpoint, troubled, uneven
from tests.support.lives import Lives
from tests.support.runs import run_config, run_scripted
from tests.support.scripted.workloads import ScriptedWorkloads, scripted_workloads


def config(tmp_path: Path, **fields: Any) -> RunConfig:
    defaults = {"steps": 8, "checkpoint": CheckpointConfig(every=2), "run_dir": str(tmp_path), "max_age": 1}
    return run_config(**defaults | fields)


def scripted(trainer: type[ScriptedTrainer] = ScriptedTrainer, **options: Any) -> ScriptedWorkloads:
    workloads = scripted_workloads(60, duration_s=lambda _: 0.1)
    return replace(workloads, trainer=trainer(workloads.payloads, step_s=1.0, **options))


def told(events: Sequence[LedgerEvent]) -> list[str]:
    """Return what the record says of steps and checkpoints, in order."""
    names: list[str] = []
    for event in events:
        match event:
            case Stepped(record=record):
                names.append(f"step {record.step}")
            case CheckpointBegun(version=version):
                names.append(f"begun {version}")
            case Checkpointed(version=version):
                names.append(f"complete {version}")
            case _:
                pass
    return names


async def test_steps_are_taken_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    """Issue C: the trainer stands still for the copy alone."""
    ledger = MemoryLedger()
    result = await run_scripted(config(tmp_path, steps=4), scripted(save_s=1.5), ledger)
    assert told(ledger._events) == [
        "step 1", "step 2", "begun 2", "step 3", "complete 2", "step 4", "begun 4", "complete 4",
    ]  # fmt: skip
    assert max(record.metrics["time/checkpoint_s"] for record in result.metrics) == 0
    assert result.checkpoint == str(tmp_path / "checkpoints" / "step-4")


class Losing(ScriptedTrainer):
    """Loses what it copied while it writes it, the first ``losses`` times."""

    losses = 2

    async def save(self, request: CheckpointRequest) -> WeightVersion:
        if self._snapshot is None or not self.losses:
            return await super().save(request)
        self.losses -= 1
        self._snapshot = None
        await anyio.sleep(0.5)
        raise SnapshotLost("policy/0 was lost while it saved")


async def test_a_copy_that_is_lost_is_taken_again_after_the_next_step(tmp_path: Path) -> None:
    """A rank that dies while it saves takes the copy with it; the others go on, and so does the run."""
    ledger = MemoryLedger()
    result = await run_scripted(config(tmp_path, steps=7), scripted(Losing), ledger)
    assert told(ledger._events) == [
        "step 1", "step 2", "begun 2", "step 3", "begun 3", "step 4", "begun 4", "complete 4",
        "step 5", "step 6", "begun 6", "complete 6", "step 7", "complete 7",
    ]  # fmt: skip
    assert result.steps == 7
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-6", "step-7"]


async def test_copies_that_are_lost_again_and_again_end_the_run(tmp_path: Path) -> None:
    class Loser(Losing):
        losses = 1000

    with pytest.raises(BudgetExhausted, match="writing a checkpoint: 3 failures, 2 allowed by retries"):
        await run_scripted(config(tmp_path, steps=50, retries=2), scripted(Loser))


async def test_copies_that_are_lost_now_and_then_do_not_add_up(tmp_path: Path) -> None:
    class Forgetful(Losing):
        calls = 0

        async def save(self, request: CheckpointRequest) -> WeightVersion:
            self.calls += 1
            self.losses = self.calls % 2
            return await super().save(request)

    workloads = scripted(Forgetful)
    result = await run_scripted(config(tmp_path, steps=20, retries=1), workloads)
    assert isinstance(workloads.trainer, Forgetful)
    assert (result.steps, workloads.trainer.calls > 6) == (20, True)


async def test_one_is_written_at_a_time(tmp_path: Path) -> None:
    """Two copies of a model, and two writers of one folder, would be more than anybody asked for."""
    ledger = MemoryLedger()
    result = await run_scripted(config(tmp_path, steps=6), scripted(save_s=5.0), ledger)
    assert told(ledger._events) == [
        "step 1", "step 2", "begun 2", "step 3", "step 4", "complete 2",
        "begun 4", "step 5", "step 6", "complete 4", "begun 6", "complete 6",
    ]  # fmt: skip
    stood = {record.step: record.metrics["time/checkpoint_s"] for record in result.metrics}
    assert stood == pytest.approx({1: 0, 2: 0, 3: 0, 4: 0, 5: 3.0, 6: 0}, abs=0.2)
    assert [record.metrics["time/wait_s"] < 0.5 for record in result.metrics] == [True] * 6


class _Broken(ScriptedTrainer):
    async def save(self, request: CheckpointRequest) -> WeightVersion:
        await super().save(request)
        raise PortFailed("the disk is full")


async def test_a_write_that_fails_ends_the_run(tmp_path: Path) -> None:
    """A run that cannot be resumed must not seem to be one that can."""
    ledger = MemoryLedger()
    with pytest.raises(PortFailed, match="the disk is full"):
        await run_scripted(config(tmp_path), scripted(_Broken, save_s=1.5), ledger)
    assert told(ledger._events) == ["step 1", "step 2", "begun 2", "step 3"]
    assert not list((tmp_path / "checkpoints").glob("step-*"))


async def test_a_write_that_hangs_ends_the_run(tmp_path: Path) -> None:
    cfg = config(tmp_path, deadlines=Deadlines(checkpoint=3.0))
    with pytest.raises(DeadlineExceeded, match=r"save|the checkpoint of v2") as failed:
        await run_scripted(cfg, scripted(save_s=1e6))
    assert failed.value.deadline_s == 3.0


def build_troubled() -> ScriptedWorkloads:
    prompts = ScriptedPrompts(11, epochs=4, unreadable={3})
    return scripted_workloads(prompts, duration_s=lambda lease: uneven(lease) / 20, rewards=troubled, failure=failing)


@pytest.mark.parametrize("durability", ["leases", "groups"])
def test_killed_anywhere_while_steps_and_a_checkpoint_go_on_it_trains_the_same(tmp_path: Path, durability: Any) -> None:
    """Law 4: a checkpoint that was being written is never chosen, and one that is whole is, whatever came behind it."""

    def lives(name: str, **checkpoint: Any) -> Lives:
        folder = tmp_path / name
        folder.mkdir()
        cfg = replace_checkpoint(TROUBLED, CheckpointConfig(every=2, durability=durability, **checkpoint))
        return Lives(cfg=cfg, build=build_troubled, folder=folder, step_s=0.1)

    undisturbed, number = lives("undisturbed"), 0
    result = run_virtual(undisturbed.live)
    assert result is not None
    story = told(undisturbed.events)
    assert story.index("step 3") < story.index("complete 2"), "nothing went on during the checkpoint"
    for number in range(1, 200):
        one = lives(str(number), keep=1, compact_events=40)
        again = run_virtual(lambda one=one, number=number: one.live(holds_for(number)))
        if again is None:
            again = run_virtual(one.live)
        assert again is not None
        assert_same((result, undisturbed), (again, one))
        if one._count == 1:
            break
    assert number > 60


def holds_for(number: int) -> Any:
    """Die behind the so many-th append, compactions left out of account."""
    seen = [0]

    def fatal(events: Sequence[LedgerEvent]) -> bool:
        del events
        seen[0] += 1
        return seen[0] >= number

    return fatal


def test_a_stop_waits_for_what_is_written_and_saves_what_came_behind(tmp_path: Path) -> None:
    """I57: stopped in the middle of the write of v2, and of the step behind it."""
    cfg = run_config(steps=8, max_age=1, checkpoint=CheckpointConfig(every=2))
    lives = Lives(cfg=cfg, build=lambda: scripted_workloads(60, duration_s=lambda _: 0.1), folder=tmp_path, step_s=0.2)
    assert run_virtual(lambda: lives.live(stop_after_s=0.75)) is None
    assert told(lives.events)[2:] == ["begun 2", "step 3", "complete 2", "complete 3"]
    assert lives._run_dir is not None
    saved = {path.name for path in (lives._run_dir / "checkpoints").iterdir()}
    assert saved == {"step-2", "step-3"}
    result = run_virtual(lives.live)
    assert result is not None
    assert result.steps == 8
