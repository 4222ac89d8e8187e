"""A library that is down, slow or raises: the run logs on, is warned once, and finds again what was not taken."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from backends.trackers import mlflow, prometheus, tensorboard, wandb
from backends.trackers._outlet import Outlet, open_outlet
from protocols.tracking import StepRecord, TrackerPort
from tests.support.trackers import IN_THREADS, LIBRARIES, Tracker, chosen

pytestmark = list(IN_THREADS)
CONNECT: dict[str, Callable[[Path], Outlet]] = {
    "tensorboard": lambda folder: tensorboard.EventFiles(folder / "tensorboard"),
    "wandb": lambda folder: wandb.Board(wandb.Config(), folder),
    "mlflow": lambda folder: mlflow.Experiment(mlflow.Config(**LIBRARIES["mlflow"].options(folder)), "run"),
    "prometheus": lambda _folder: prometheus.Endpoint(prometheus.Config(port=0), "run"),
}


class Faulty:
    """A library's own outlet, which does something before each record."""

    def __init__(self, outlet: Outlet, before: Callable[[StepRecord], object]) -> None:
        self._outlet, self._before = outlet, before

    def write(self, record: StepRecord) -> None:
        self._before(record)
        self._outlet.write(record)

    def rewind(self, step: int) -> None:
        self._outlet.rewind(step)

    def close(self) -> None:
        self._outlet.close()


def record(step: int) -> StepRecord:
    return StepRecord(step=step, metrics={"loss": step / 2})


async def log_three(tracker: TrackerPort) -> None:
    for step in (1, 2, 3):
        await tracker.log(record(step))


def undelivered(folder: Path, kind: str) -> list[int]:
    path = folder / f"undelivered-{kind}.jsonl"
    return [json.loads(line)["step"] for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture(params=[pytest.param(one, id=kind) for kind, one in LIBRARIES.items()])
def tracker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Tracker:
    return chosen(request, monkeypatch)


def kind_of(tracker: Tracker) -> str:
    return next(kind for kind, one in LIBRARIES.items() if one is tracker)


async def test_one_that_raises_is_warned_of_once_and_loses_no_other_record(tracker: Tracker, tmp_path: Path) -> None:
    def raise_once(one: StepRecord) -> None:
        if one.step == 1:
            raise ConnectionResetError("gone")

    kind = kind_of(tracker)
    with structlog.testing.capture_logs() as lines:
        async with open_outlet(kind, lambda: Faulty(CONNECT[kind](tmp_path), raise_once), str(tmp_path)) as port:
            await log_three(port)
    assert [(line["event"], line["error"]) for line in lines] == [("tracker.failed", "ConnectionResetError: gone")]
    assert undelivered(tmp_path, kind) == [1]
    assert tracker.read is None or tracker.read(tmp_path) == [record(2), record(3)]


async def test_one_that_is_slow_is_not_waited_for(tracker: Tracker, tmp_path: Path) -> None:
    """All records are logged while it still takes the first one, and it has them all at the end."""
    may, kind = threading.Event(), kind_of(tracker)
    with structlog.testing.capture_logs() as lines:
        async with open_outlet(
            kind, lambda: Faulty(CONNECT[kind](tmp_path), lambda _: may.wait(30)), str(tmp_path)
        ) as port:
            await log_three(port)
            may.set()
    assert lines == []
    assert undelivered(tmp_path, kind) == []
    assert tracker.read is None or tracker.read(tmp_path) == [record(1), record(2), record(3)]


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


def down(kind: str, folder: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Options under which nothing of that kind can be reached."""
    match kind:
        case "tensorboard":
            (folder / "tensorboard").write_text("no folder")
            return {}
        case "prometheus":
            return {"port": port}
        case "wandb":  # without a login
            monkeypatch.setenv("HOME", str(folder))
            monkeypatch.delenv("WANDB_API_KEY", raising=False)
            return {"mode": "online"}
        case _:
            monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
            return {"uri": "http://127.0.0.1:9"}  # the port for what is to be discarded


async def test_one_that_is_down_stops_nothing(
    tracker: Tracker, tmp_path: Path, taken_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = kind_of(tracker)
    with structlog.testing.capture_logs() as lines:
        async with tracker.open(tmp_path, **down(kind, tmp_path, taken_port, monkeypatch)) as port:
            await log_three(port)
    assert [(line["event"], line["tracker"]) for line in lines] == [("tracker.failed", kind)]
    assert undelivered(tmp_path, kind) == [1, 2, 3]
