"""Runs that keep their best checkpoints: what is on the disk at the end, and after a kill behind any event."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backends.ledgers.memory import MemoryLedger
from backends.sim.prompts import ScriptedPrompts
from backends.sim.virtual_time import run_virtual
from conductor import checkpoints
from conductor.conductor import Conductor
from conductor.config import CheckpointConfig, EvaluationConfig, RunConfig
from conductor.past import rebuild
from protocols.errors import EngineBusy, UserError
from protocols.grading import Grade, GradeRequest
from protocols.ledger import Checkpointed, CheckpointsReleased, LedgerEvent, Resumed
from protocols.messages import WeightVersion
from tests.support.lives import Lives, holds
from tests.support.runs import open_backend_over, run_config, workloads_of
from tests.support.scripted.workloads import ScriptedWorkloads, scripted_workloads

WORTH = {1: 0.2, 2: 0.9, 3: 0.4, 4: 0.7, 5: 0.1, 6: 0.3}
"""Of each version, by its evaluation."""


def worth(request: GradeRequest) -> list[Grade]:
    """Grade an evaluation by the version that it is of, and a group by nothing that matters."""
    if not request.lease_id.startswith("E"):
        return [Grade(reward=float(index % 2)) for index in request.samples]
    return [Grade(reward=WORTH[int(request.lease_id[1:].split("/")[0])]) for _ in request.samples]


def build() -> ScriptedWorkloads:
    return scripted_workloads(100, rewards=worth)


def config(*, every: int = 1, evaluate_every: int = 1, steps: int = 6, max_age: int = 0, **wanted: Any) -> RunConfig:
    return run_config(
        steps=steps,
        max_age=max_age,
        evaluation=EvaluationConfig(every=evaluate_every, samples=1),
        checkpoint=CheckpointConfig(every=every, **wanted),
    )


async def run(
    cfg: RunConfig, folder: Path, scripted: ScriptedWorkloads, ledger: MemoryLedger | None = None
) -> list[int]:
    """Run to the end; returns the checkpoints that are there then."""
    cfg = msgspec.structs.replace(cfg, run_dir=str(folder))
    workloads = replace(workloads_of(scripted, ledger), evaluation_prompts=ScriptedPrompts(2))
    async with open_backend_over(scripted) as backend:
        await Conductor.run(cfg, backend=backend, workloads=workloads)
    return there(folder)


def there(run_dir: Path) -> list[int]:
    return list(checkpoints.complete(checkpoints.folder_of(str(run_dir))))


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"keep": 1}, [6]),
        ({"keep": 1, "keep_best": 1}, [2, 6]),
        ({"keep": 1, "keep_best": 2}, [2, 4, 6]),
        ({"keep": 2, "keep_best": 2}, [2, 4, 5, 6]),
        ({"keep": 1, "keep_best": 2, "mode": "min"}, [1, 5, 6]),
        ({"keep": 1, "keep_best": 2, "metric": "eval/reward/best"}, [2, 4, 6]),
        ({"keep": 1, "keep_best": 1, "evaluate_every": 3}, [3, 6]),
        ({"keep": 1, "keep_best": 1, "steps": 2}, [2]),
    ],
)
async def test_the_newest_and_the_best_are_kept_and_no_others(
    tmp_path: Path, wanted: dict[str, Any], expected: list[int]
) -> None:
    """Issue E: top-k and latest."""
    assert await run(config(**wanted), tmp_path, build()) == expected


async def test_one_whose_evaluation_goes_on_stays_until_it_is_judged(tmp_path: Path) -> None:
    """Issue E: pending validation: two newer ones are whole before anybody knows that the second was the best."""
    slowly = scripted_workloads(
        100, rewards=worth, duration_s=lambda lease: 9.0 if lease.lease_id.startswith("E") else 1.0
    )
    cfg = config(keep=1, keep_best=1, evaluate_every=2, max_age=3)
    ledger = MemoryLedger()
    assert await run(cfg, tmp_path, slowly, ledger) == [2, 6]
    held = [event.held for event in await ledger.replay() if isinstance(event, Checkpointed)]
    assert held == [(), (), (2,), (2,), (2, 4), (2, 4, 5)], "4 and 5 may be evaluated next, whichever is served"


async def test_a_metric_that_no_evaluation_has_is_told_of(tmp_path: Path) -> None:
    """A name with a slip in it would let the best ones go, in silence."""
    assert await run(config(keep=1, keep_best=1, metric="eval/rewrad"), tmp_path, build()) == [6]
    assert "checkpoint.not_judged" in (tmp_path / "log.jsonl").read_text()


async def test_evaluations_that_fail_keep_no_checkpoint_for_ever(tmp_path: Path) -> None:
    """I73: what awaits its evaluation is kept, so an evaluation that never comes would fill the disk."""
    scripted = scripted_workloads(
        100,
        rewards=worth,
        failure=lambda lease: EngineBusy(engine="e", waiting=1) if lease.lease_id.startswith("E") else None,
    )
    assert await run(config(keep=1, keep_best=2), tmp_path, scripted) == [6]


@pytest.mark.parametrize("compact_events", [0, 45])
def test_killed_behind_any_event_it_keeps_what_it_would_have_kept(tmp_path: Path, compact_events: int) -> None:
    """Issue E: whatever crashes, the latest whole one is there, the best ones are, and nothing else is."""
    whole = lives(tmp_path, config(keep=1, keep_best=2, compact_events=0))
    assert run_virtual(whole.live) is not None
    about = [number for number, event in enumerate(whole.events, start=1) if says_of_checkpoints(event)]
    for number in sorted({*about, *range(1, len(whole.events), 11)}):
        folder = tmp_path / str(number)
        folder.mkdir()
        one = lives(folder, config(keep=1, keep_best=2, compact_events=compact_events))
        run_virtual(lambda one=one, number=number: one.live(holds(number)))
        assert set(rebuild(one.events).checkpoints.whole) <= set(saved(one)), number
        assert run_virtual(one.live) is not None
        assert saved(one) == [2, 4, 6], number
        assert not list(folder.rglob("unknown-*")), number
        assert rebuild(one.events).checkpoints.whole == (2, 4, 6), number


def lives(folder: Path, cfg: RunConfig) -> Lives:
    return Lives(cfg=cfg, build=build, folder=folder, evaluated_on=lambda: ScriptedPrompts(2))


def saved(one: Lives) -> list[int]:
    assert one._run_dir is not None
    return there(one._run_dir)


def says_of_checkpoints(event: LedgerEvent) -> bool:
    return isinstance(event, Checkpointed | CheckpointsReleased)


def test_a_best_one_is_nothing_that_a_resume_goes_back_to(tmp_path: Path) -> None:
    """Its groups are final: gone back to, the run would tell of them twice."""
    one = lives(tmp_path, config(keep=1, keep_best=1))

    def five_are_saved(events: Sequence[LedgerEvent]) -> bool:
        return any(isinstance(event, Checkpointed) and event.version == 5 for event in events)

    run_virtual(lambda: one.live(five_are_saved))
    assert set(saved(one)) >= {2, 5}
    assert run_virtual(one.live) is not None
    assert [event.version for event in one.events if isinstance(event, Resumed)] == [WeightVersion(5)]
    assert one._run_dir is not None
    shutil.rmtree(checkpoints.folder_of(str(one._run_dir)) / "step-6")
    with pytest.raises(UserError, match="cannot go on without its checkpoints: step-6"):
        run_virtual(one.live)
