"""A library of metrics that is down, slow, hangs or raises: what the run feels of it, and where its records are."""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
import structlog
from structlog.typing import EventDict

from backends.trackers._outlet import OutletTracker, open_outlet
from protocols.tracking import StepRecord

pytestmark = pytest.mark.real_time  # a thread of its own


class ScriptedOutlet:
    """Takes records, unless ``before`` keeps it from doing so."""

    def __init__(self, before: Callable[[StepRecord], object] = lambda _: None) -> None:
        self._before = before
        self.taken: list[int] = []
        self.rewound: list[int] = []
        self.closed = False

    def write(self, record: StepRecord) -> None:
        self._before(record)
        self.taken.append(record.step)

    def rewind(self, step: int) -> None:
        self.rewound.append(step)

    def close(self) -> None:
        self.closed = True


def record(step: int) -> StepRecord:
    return StepRecord(step=step, metrics={"loss": step / 2})


def undelivered(folder: Path) -> list[Any]:
    path = folder / "undelivered-scripted.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def refuse(_: StepRecord) -> None:
    raise ConnectionError("nobody listens")


async def test_all_is_delivered_in_order_by_the_end(tmp_path: Path) -> None:
    outlet = ScriptedOutlet()
    async with open_outlet("scripted", lambda: outlet, str(tmp_path)) as tracker:
        assert await tracker.rewind(3) == 3
        for step in range(4, 54):
            await tracker.log(record(step))
    assert outlet.rewound == [3]
    assert outlet.taken == list(range(4, 54))
    assert outlet.closed
    assert undelivered(tmp_path) == []


async def test_one_that_raises_is_warned_of_once_and_its_records_are_kept(tmp_path: Path) -> None:
    with structlog.testing.capture_logs() as lines:
        async with open_outlet("scripted", lambda: ScriptedOutlet(refuse), str(tmp_path)) as tracker:
            for step in (1, 2, 3):
                await tracker.log(record(step))
    why = "ConnectionError: nobody listens"
    assert undelivered(tmp_path) == [{"step": n, "metrics": {"loss": n / 2}, "error": why} for n in (1, 2, 3)]
    assert [(line["event"], line["error"]) for line in lines] == [("tracker.failed", why)]


async def test_one_that_is_down_at_first_is_connected_later(tmp_path: Path) -> None:
    outlet, tries = ScriptedOutlet(), iter([True, False])

    def connect() -> ScriptedOutlet:
        if next(tries):
            raise ConnectionError("not yet")
        return outlet

    async with open_outlet("scripted", connect, str(tmp_path)) as tracker:
        for step in (1, 2):
            await tracker.log(record(step))
    assert outlet.taken == [2]
    assert [line["step"] for line in undelivered(tmp_path)] == [1]


async def test_one_that_hangs_holds_nobody_up(tmp_path: Path) -> None:
    """A server that takes the connection and never answers: the run neither waits for it nor fails with it."""
    may, reached = threading.Event(), threading.Event()

    def hang(_: StepRecord) -> None:
        reached.set()
        may.wait(30)

    began = time.monotonic()
    try:
        async with open_outlet("scripted", lambda: ScriptedOutlet(hang), str(tmp_path), close_s=0.2) as tracker:
            await tracker.log(record(1))
            assert reached.wait(10)
            for step in (2, 3):
                await tracker.log(record(step))
        assert time.monotonic() - began < 10
        assert [line["step"] for line in undelivered(tmp_path)] == [2, 3]
    finally:
        may.set()


async def test_whoever_waits_for_one_that_hangs_is_told_and_may_stop_waiting(tmp_path: Path) -> None:
    """Ten seconds at the end of a run, with nothing on the screen, are taken for a hang of the run."""
    may, left, told = threading.Event(), anyio.Event(), anyio.Event()

    def hear(_logger: object, _method: str, entry: EventDict) -> EventDict:
        told.set()
        return entry

    try:
        with structlog.testing.capture_logs(processors=[hear]) as lines:
            async with anyio.create_task_group() as tasks:

                async def live() -> None:
                    async with open_outlet(
                        "scripted", lambda: ScriptedOutlet(lambda _: may.wait(30)), str(tmp_path)
                    ) as port:
                        await port.log(record(1))
                        await port.log(record(2))
                    left.set()

                tasks.start_soon(live)
                await told.wait()
                tasks.cancel_scope.cancel()
        assert lines[0] == {
            "event": "tracker.awaited",
            "log_level": "warning",
            "tracker": "scripted",
            "at_most_s": 10.0,
        }
        assert not left.is_set()
        assert [line["step"] for line in undelivered(tmp_path)] == [2]
    finally:
        may.set()


async def test_what_a_slow_one_cannot_keep_up_with_is_written_aside(tmp_path: Path) -> None:
    """Memory has a bound, whatever a server does."""
    tracker = OutletTracker("scripted", ScriptedOutlet, tmp_path, kept=2)  # whose thread never begins
    for step in (1, 2, 3):
        await tracker.log(record(step))
    tracker.leave()
    reasons = {line["step"]: line["error"] for line in undelivered(tmp_path)}
    assert reasons.keys() == {1, 2, 3}
    assert reasons[3] == "it takes records more slowly than steps are made"
