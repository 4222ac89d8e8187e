"""The file of the steps: each of them once, whatever ends the run."""

import json
import math
import threading
from pathlib import Path, PosixPath
from typing import Any

import anyio
import anyio.to_thread
import pytest

from backends.trackers.jsonl import Writer
from protocols.tracking import StepRecord
from tests.support.trackers import JSONL


class SlowPath(PosixPath):
    """A file that is opened when it may be."""

    may = threading.Event()
    asked = threading.Event()

    def open(self, *args: Any, **options: Any) -> Any:
        self.asked.set()
        assert self.may.wait(10)
        return super().open(*args, **options)


@pytest.mark.real_time
async def test_a_line_that_is_being_written_when_the_run_is_cancelled_is_written_once(tmp_path: PosixPath) -> None:
    """I57: the thread wrote on behind the cancellation, and the same lines were written again behind it."""
    writer = Writer(SlowPath(tmp_path / "metrics.jsonl"))
    send, receive = anyio.create_memory_object_stream[bytes](10)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writer.run, receive)
        with send:
            send.send_nowait(b'{"step": 1}\n')
            assert await anyio.to_thread.run_sync(SlowPath.asked.wait, 10)
            send.send_nowait(b'{"step": 2}\n')
            tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await anyio.wait_all_tasks_blocked()
            SlowPath.may.set()
    steps = [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2]


def record(step: int) -> StepRecord:
    return StepRecord(step=step, metrics={"reward/mean": step / 2, "loss": -0.5})


def written(run_dir: Path) -> list[object]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def expected(*steps: int) -> list[object]:
    return [{"step": step, "metrics": {"reward/mean": step / 2, "loss": -0.5}} for step in steps]


async def test_a_record_is_on_the_disk_soon(tmp_path: Path) -> None:
    async with JSONL.open(tmp_path) as tracker:
        await tracker.log(record(1))
        await anyio.sleep(1)
        assert written(tmp_path) == expected(1)


async def test_a_rewind_takes_back_later_steps_and_a_torn_line(tmp_path: Path) -> None:
    """Issue C: a resumed run must not hold a step twice."""
    async with JSONL.open(tmp_path) as tracker:
        for step in (1, 2, 3):
            await tracker.log(record(step))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "metr')
    async with JSONL.open(tmp_path) as tracker:
        assert await tracker.rewind(3) == 3
        assert written(tmp_path) == expected(1, 2, 3)
        assert await tracker.rewind(1) == 1
        await tracker.log(record(2))
    assert written(tmp_path) == expected(1, 2)


async def test_a_rewind_says_what_is_missing(tmp_path: Path) -> None:
    """A kill came before the last lines were on the disk: the run logs them again."""
    async with JSONL.open(tmp_path) as tracker:
        assert await tracker.rewind(5) == 0
        await tracker.log(record(1))
    async with JSONL.open(tmp_path) as tracker:
        assert await tracker.rewind(5) == 1


async def test_an_outage_stops_nothing_and_is_bridged(tmp_path: Path) -> None:
    """A tracker that is down must not end a run that has trained for a week."""
    run_dir = tmp_path / "not there yet"
    async with JSONL.open(run_dir) as tracker:
        await tracker.log(record(1))
        await tracker.log(record(2))
        await anyio.sleep(1)
        run_dir.mkdir()
        await tracker.log(record(3))
    assert written(run_dir) == expected(1, 2, 3)


async def test_an_outage_to_the_end_is_no_error(tmp_path: Path) -> None:
    async with JSONL.open(tmp_path / "nowhere") as tracker:
        await tracker.log(record(1))
    assert not (tmp_path / "nowhere").exists()


async def test_a_metric_that_is_no_number_leaves_a_readable_line(tmp_path: Path) -> None:
    async with JSONL.open(tmp_path) as tracker:
        await tracker.log(StepRecord(step=1, metrics={"loss": math.nan, "grad_norm": math.inf}))
    assert written(tmp_path) == [{"step": 1, "metrics": {"loss": None, "grad_norm": None}}]
