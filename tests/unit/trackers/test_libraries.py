"""Trackers over libraries: what was logged is read back with the library's own reader."""

import struct
import urllib.request
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from backends.sim.payloads import ScriptedPayloads
from backends.trackers import mlflow, prometheus, tensorboard, wandb
from protocols.adapters import Host
from protocols.sections import Site
from protocols.tracking import StepRecord, TrackerPort

pytestmark = [pytest.mark.real_time, pytest.mark.filterwarnings("ignore::DeprecationWarning")]  # the libraries' own


@asynccontextmanager
async def opened(adapter: Any, run_dir: Path, **options: Any) -> AsyncGenerator[TrackerPort]:
    host = Host(site=Site(job_dir="/", run_dir=str(run_dir)), payloads=ScriptedPayloads())
    async with adapter.open(adapter.Config(**options), host) as tracker:
        yield tracker
    assert not found(run_dir, "undelivered-*")


def found(folder: Path, pattern: str) -> list[Path]:
    return list(folder.glob(pattern))


def record(step: int) -> StepRecord:
    return StepRecord(step=step, metrics={"reward/mean": step / 2, "loss": -0.25})


async def test_tensorboard_reads_its_events_back_and_forgets_what_was_taken_back(tmp_path: Path) -> None:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for steps in ((1, 2, 3), (2, 3, 4)):
        async with opened(tensorboard, tmp_path) as tracker:
            await tracker.rewind(steps[0] - 1)
            for step in steps:
                await tracker.log(record(step))
    events = reading.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert sorted(events.Tags()["scalars"]) == ["loss", "reward/mean"]
    assert [(one.step, one.value) for one in events.Scalars("reward/mean")] == [(1, 0.5), (2, 1.0), (3, 1.5), (4, 2.0)]


async def test_the_official_parser_reads_what_prometheus_scrapes(tmp_path: Path) -> None:
    parsing = pytest.importorskip("prometheus_client.parser")
    endpoint = prometheus.Endpoint(prometheus.Config(port=0), "run-1")
    try:
        for step in (1, 2):
            endpoint.write(record(step))
        url = f"http://127.0.0.1:{endpoint.port}/metrics"
        answer = await anyio.to_thread.run_sync(lambda: urllib.request.urlopen(url, timeout=10).read().decode())
    finally:
        endpoint.close()
    samples = {one.name: one for family in parsing.text_string_to_metric_families(answer) for one in family.samples}
    assert {name: one.value for name, one in samples.items()} == {
        "conductor_step": 2.0,
        "conductor_reward_mean": 1.0,
        "conductor_loss": -0.25,
    }
    assert samples["conductor_step"].labels == {"run": "run-1"}


async def test_a_port_that_is_taken_stops_no_run(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    taken = prometheus.Endpoint(prometheus.Config(port=0), "first")
    try:
        with pytest.raises(AssertionError):  # of the helper: it did not deliver, and the run went on
            async with opened(prometheus, tmp_path, port=taken.port) as tracker:
                await tracker.log(record(1))
    finally:
        taken.close()
    assert "Address already in use" in (tmp_path / "undelivered-prometheus.jsonl").read_text()


async def test_wandb_offline_writes_a_run_that_its_reader_reads(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    async with opened(wandb, tmp_path) as tracker:
        for step in (1, 2):
            await tracker.log(record(step))
    (file,) = found(tmp_path, "wandb/offline-run-*/run-*.wandb")
    assert history(file) == [{"reward/mean": "0.5", "loss": "-0.25"}, {"reward/mean": "1", "loss": "-0.25"}]


def history(file: Path) -> list[dict[str, str]]:
    """The rows of an offline file, in the library's own messages."""
    records: Any = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    rows: list[dict[str, str]] = []
    for data in log_records(file.read_bytes()):
        entry = records.Record.FromString(data)
        if entry.WhichOneof("record_type") == "history":
            items = {item.key or "/".join(item.nested_key): item.value_json for item in entry.history.item}
            rows.append({name: value for name, value in items.items() if not name.startswith("_")})
    return rows


def log_records(data: bytes) -> Iterator[bytes]:
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


async def test_mlflow_has_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracking = pytest.importorskip("mlflow.tracking")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a store that needs no server and no database
    uri = (tmp_path / "store").as_uri()
    async with opened(mlflow, tmp_path, uri=uri) as tracker:
        for step in (1, 2):
            await tracker.log(record(step))
    client = tracking.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("conductor")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    history = client.get_metric_history(run.info.run_id, "reward/mean")
    assert [(one.step, one.value) for one in history] == [(1, 0.5), (2, 1.0)]
