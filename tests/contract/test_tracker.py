"""What every tracker keeps to; those over libraries where these are installed."""

import math
from pathlib import Path

import anyio
import pytest

from protocols.tracking import StepRecord
from tests.support.trackers import IN_THREADS, JSONL, LIBRARIES, WIRED, Tracker, chosen

FILES = [pytest.param(JSONL, id="jsonl"), pytest.param(WIRED, id="jsonl-wired")]
ALL = [*FILES, *(pytest.param(one, id=kind, marks=IN_THREADS) for kind, one in LIBRARIES.items())]
KEEPING = [param for param in ALL if param.values[0].read is not None]


@pytest.fixture
def tracker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Tracker:
    monkeypatch.chdir(tmp_path)  # what has no folder of a run writes below the working folder
    return chosen(request, monkeypatch)


def record(step: int) -> StepRecord:
    return StepRecord(step=step, metrics={"reward/mean": step / 2, "loss": -0.5})


def records(*steps: int) -> list[StepRecord]:
    return [record(step) for step in steps]


def told(tracker: Tracker, run_dir: Path) -> list[StepRecord]:
    assert not list(run_dir.glob("undelivered-*"))
    assert tracker.read is not None
    return tracker.read(run_dir)


@pytest.mark.parametrize("tracker", KEEPING, indirect=True)
async def test_records_are_kept_in_order_and_all_of_them_at_the_end(tracker: Tracker, tmp_path: Path) -> None:
    async with tracker.open(tmp_path) as port:
        for step in range(1, 101):
            await port.log(record(step))
    assert told(tracker, tmp_path) == records(*range(1, 101))


@pytest.mark.parametrize("tracker", KEEPING, indirect=True)
async def test_a_resumed_run_goes_on_behind_what_was_kept(tracker: Tracker, tmp_path: Path) -> None:
    for step in (1, 2):
        async with tracker.open(tmp_path) as port:
            assert await port.rewind(step - 1) == step - 1
            await port.log(record(step))
    assert told(tracker, tmp_path) == records(1, 2)


@pytest.mark.parametrize("tracker", KEEPING, indirect=True)
async def test_what_was_logged_before_a_cancellation_is_kept(tracker: Tracker, tmp_path: Path) -> None:
    with anyio.CancelScope() as scope:
        async with tracker.open(tmp_path) as port:
            await port.log(record(1))
            await port.log(record(2))
            scope.cancel()
            await anyio.sleep_forever()
    assert told(tracker, tmp_path) == records(1, 2)


@pytest.mark.parametrize("tracker", KEEPING, indirect=True)
async def test_an_error_of_the_run_is_not_changed(tracker: Tracker, tmp_path: Path) -> None:
    async def run() -> None:
        async with tracker.open(tmp_path) as port:
            await port.log(record(1))
            raise KeyError("the run failed")

    with pytest.raises(KeyError, match="the run failed"):
        await run()
    assert told(tracker, tmp_path) == records(1)


@pytest.mark.parametrize("tracker", KEEPING, indirect=True)
async def test_a_metric_that_is_no_number_keeps_nothing_else_away(tracker: Tracker, tmp_path: Path) -> None:
    async with tracker.open(tmp_path) as port:
        await port.log(StepRecord(step=1, metrics={"loss": math.nan, "grad_norm": math.inf}))
        await port.log(record(2))
    assert told(tracker, tmp_path)[-1] == record(2)


@pytest.mark.parametrize("tracker", ALL, indirect=True)
async def test_without_a_folder_nothing_fails(tracker: Tracker) -> None:
    async with tracker.open(None) as port:
        await port.log(record(1))


@pytest.mark.parametrize("tracker", ALL, indirect=True)
async def test_log_reaches_a_checkpoint(tracker: Tracker, tmp_path: Path) -> None:
    async with tracker.open(tmp_path) as port:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await port.log(record(1))
        assert scope.cancelled_caught
