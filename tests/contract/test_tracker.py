"""What every tracker keeps to."""

import json
import math
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import anyio
import pytest

from backends.sim.payloads import ScriptedPayloads
from backends.trackers import jsonl
from protocols.adapters import Host
from protocols.sections import Site
from protocols.tracking import StepRecord, TrackerPort
from protocols.wire import over_codec

OpenTracker = Callable[[Path | None], AbstractAsyncContextManager[TrackerPort]]


@asynccontextmanager
async def _jsonl(run_dir: Path | None) -> AsyncGenerator[TrackerPort]:
    site = Site(job_dir="/", run_dir=None if run_dir is None else str(run_dir))
    async with jsonl.open(jsonl.Config(), Host(site=site, payloads=ScriptedPayloads())) as tracker:
        yield tracker


@asynccontextmanager
async def _jsonl_wired(run_dir: Path | None) -> AsyncGenerator[TrackerPort]:
    async with _jsonl(run_dir) as tracker:
        yield over_codec(TrackerPort, tracker)


@pytest.fixture(params=[pytest.param(_jsonl, id="jsonl"), pytest.param(_jsonl_wired, id="jsonl-wired")])
def open_tracker(request: pytest.FixtureRequest) -> OpenTracker:
    return request.param


def record(step: int) -> StepRecord:
    return StepRecord(step=step, metrics={"reward/mean": step / 2, "loss": -0.5})


def written(run_dir: Path) -> list[object]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def expected(*steps: int) -> list[object]:
    return [{"step": step, "metrics": {"reward/mean": step / 2, "loss": -0.5}} for step in steps]


async def test_records_are_written_in_order_and_all_of_them_at_the_end(
    open_tracker: OpenTracker, tmp_path: Path
) -> None:
    async with open_tracker(tmp_path) as tracker:
        for step in range(1, 101):
            await tracker.log(record(step))
    assert written(tmp_path) == expected(*range(1, 101))


async def test_a_record_is_on_the_disk_soon(open_tracker: OpenTracker, tmp_path: Path) -> None:
    async with open_tracker(tmp_path) as tracker:
        await tracker.log(record(1))
        await anyio.sleep(1)
        assert written(tmp_path) == expected(1)


async def test_a_resumed_run_goes_on_in_the_same_file(open_tracker: OpenTracker, tmp_path: Path) -> None:
    for step in (1, 2):
        async with open_tracker(tmp_path) as tracker:
            await tracker.log(record(step))
    assert written(tmp_path) == expected(1, 2)


async def test_a_rewind_takes_back_later_steps_and_a_torn_line(open_tracker: OpenTracker, tmp_path: Path) -> None:
    """Issue C: a resumed run must not hold a step twice."""
    async with open_tracker(tmp_path) as tracker:
        for step in (1, 2, 3):
            await tracker.log(record(step))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "metr')
    async with open_tracker(tmp_path) as tracker:
        assert await tracker.rewind(3) == 3
        assert written(tmp_path) == expected(1, 2, 3)
        assert await tracker.rewind(1) == 1
        await tracker.log(record(2))
    assert written(tmp_path) == expected(1, 2)


async def test_a_rewind_says_what_is_missing(open_tracker: OpenTracker, tmp_path: Path) -> None:
    """A kill came before the last lines were on the disk: the run logs them again."""
    async with open_tracker(tmp_path) as tracker:
        assert await tracker.rewind(5) == 0
        await tracker.log(record(1))
    async with open_tracker(tmp_path) as tracker:
        assert await tracker.rewind(5) == 1


async def test_what_was_logged_before_a_cancellation_is_written(open_tracker: OpenTracker, tmp_path: Path) -> None:
    with anyio.CancelScope() as scope:
        async with open_tracker(tmp_path) as tracker:
            await tracker.log(record(1))
            await tracker.log(record(2))
            scope.cancel()
            await anyio.sleep_forever()
    assert written(tmp_path) == expected(1, 2)


async def test_an_error_of_the_run_is_not_changed(open_tracker: OpenTracker, tmp_path: Path) -> None:
    async def run() -> None:
        async with open_tracker(tmp_path) as tracker:
            await tracker.log(record(1))
            raise KeyError("the run failed")

    with pytest.raises(KeyError, match="the run failed"):
        await run()
    assert written(tmp_path) == expected(1)


async def test_an_outage_stops_nothing_and_is_bridged(open_tracker: OpenTracker, tmp_path: Path) -> None:
    """A tracker that is down must not end a run that has trained for a week."""
    run_dir = tmp_path / "not there yet"
    async with open_tracker(run_dir) as tracker:
        await tracker.log(record(1))
        await tracker.log(record(2))
        await anyio.sleep(1)
        run_dir.mkdir()
        await tracker.log(record(3))
    assert written(run_dir) == expected(1, 2, 3)


async def test_an_outage_to_the_end_is_no_error(open_tracker: OpenTracker, tmp_path: Path) -> None:
    async with open_tracker(tmp_path / "nowhere") as tracker:
        await tracker.log(record(1))
    assert not (tmp_path / "nowhere").exists()


async def test_without_a_folder_nothing_is_written(open_tracker: OpenTracker) -> None:
    async with open_tracker(None) as tracker:
        await tracker.log(record(1))


async def test_a_metric_that_is_no_number_leaves_a_readable_line(open_tracker: OpenTracker, tmp_path: Path) -> None:
    async with open_tracker(tmp_path) as tracker:
        await tracker.log(StepRecord(step=1, metrics={"loss": math.nan, "grad_norm": math.inf}))
    assert written(tmp_path) == [{"step": 1, "metrics": {"loss": None, "grad_norm": None}}]


async def test_log_reaches_a_checkpoint(open_tracker: OpenTracker, tmp_path: Path) -> None:
    async with open_tracker(tmp_path) as tracker:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await tracker.log(record(1))
        assert scope.cancelled_caught
