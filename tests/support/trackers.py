"""Every tracker, and how what it was told is read back with its library's own reader."""

import json
import struct
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from backends.sim.payloads import ScriptedPayloads
from backends.trackers import jsonl, mlflow, prometheus, tensorboard, wandb
from protocols.adapters import Host
from protocols.sections import Site
from protocols.tracking import StepRecord, TrackerPort
from protocols.wire import over_codec

Read = Callable[[Path], list[StepRecord]]


@dataclass(frozen=True, kw_only=True)
class Tracker:
    """One kind of tracker.

    Attributes:
        needs: The module of its library.
        options: Of its section, for runs in a folder.
        read: What a run's folder says that it was told; None: it keeps nothing.
        wired: Every message is encoded and decoded.
    """

    adapter: Any
    needs: str = "json"
    options: Callable[[Path], dict[str, Any]] = field(default=lambda _folder: {})
    read: Read | None = None
    wired: bool = False

    @asynccontextmanager
    async def open(self, run_dir: Path | None, **options: Any) -> AsyncGenerator[TrackerPort]:
        host = Host(
            site=Site(job_dir="/", run_dir=None if run_dir is None else str(run_dir)), payloads=ScriptedPayloads()
        )
        cfg = self.adapter.Config(**{**self.options(run_dir or Path.cwd()), **options})
        async with self.adapter.open(cfg, host) as tracker:
            yield over_codec(TrackerPort, tracker) if self.wired else tracker


def read_lines(folder: Path) -> list[StepRecord]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [StepRecord(step=line["step"], metrics=line["metrics"]) for line in lines]


def read_events(folder: Path) -> list[StepRecord]:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = reading.EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    told: dict[int, dict[str, float]] = {}
    for name in events.Tags()["scalars"]:
        for one in events.Scalars(name):
            told.setdefault(one.step, {})[name] = one.value
    return [StepRecord(step=step, metrics=metrics) for step, metrics in sorted(told.items())]


def read_offline_run(folder: Path) -> list[StepRecord]:
    """The rows of the library's offline files, in its own messages."""
    records: Any = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    told: list[StepRecord] = []
    files = folder.glob("wandb/offline-run-*/run-*.wandb")  # their names tell the second, and chance
    for file in sorted(files, key=lambda file: file.stat().st_mtime_ns):
        entries = [records.Record.FromString(data) for data in _log_records(file.read_bytes())]
        assert entries[-1].WhichOneof("record_type") == "exit", f"{file} has no end"
        for entry in entries:
            if entry.WhichOneof("record_type") == "history":
                items = {item.key or "/".join(item.nested_key): item.value_json for item in entry.history.item}
                metrics = {name: float(json.loads(value)) for name, value in items.items() if name[0] != "_"}
                told.append(StepRecord(step=int(items["_step"]), metrics=metrics))
    return told


def _log_records(data: bytes) -> Iterator[bytes]:
    """The records of a file in LevelDB's log format, behind the 7 bytes that the library begins it with."""
    at, part = 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:  # the rest of a block that no header fits into
            at += 32768 - at % 32768
            continue
        _crc, size, kind = struct.unpack_from("<IHB", data, at)
        part += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in {1, 4}:  # whole, or its last part
            yield part
            part = b""


def read_store(folder: Path) -> list[StepRecord]:
    client = pytest.importorskip("mlflow.tracking").MlflowClient(tracking_uri=(folder / "store").as_uri())
    experiment = client.get_experiment_by_name("conductor")
    told: dict[int, dict[str, float]] = {}
    for run in client.search_runs([experiment.experiment_id]):
        assert run.info.status == "FINISHED"
        for name in run.data.metrics:
            for one in client.get_metric_history(run.info.run_id, name):
                told.setdefault(one.step, {})[name] = one.value
    return [StepRecord(step=step, metrics=metrics) for step, metrics in sorted(told.items())]


JSONL = Tracker(adapter=jsonl, read=read_lines)
WIRED = Tracker(adapter=jsonl, read=read_lines, wired=True)
TENSORBOARD = Tracker(adapter=tensorboard, needs="tensorboard", read=read_events)
WANDB = Tracker(adapter=wandb, needs="wandb", read=read_offline_run)
MLFLOW = Tracker(
    adapter=mlflow, needs="mlflow", read=read_store, options=lambda folder: {"uri": (folder / "store").as_uri()}
)
PROMETHEUS = Tracker(adapter=prometheus, needs="prometheus_client", options=lambda _folder: {"port": 0})
LIBRARIES = {"tensorboard": TENSORBOARD, "wandb": WANDB, "mlflow": MLFLOW, "prometheus": PROMETHEUS}

IN_THREADS = (pytest.mark.real_time, pytest.mark.filterwarnings("ignore::DeprecationWarning"))  # the libraries' own


def chosen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Tracker:
    """Return a parameter's tracker, where its library is installed."""
    pytest.importorskip(request.param.needs)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a store that needs no server and no database
    return request.param
