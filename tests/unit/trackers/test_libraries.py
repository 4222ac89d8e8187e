"""Trackers over libraries: what each of them does beside the contract of all."""

import urllib.request
from pathlib import Path

import anyio.to_thread
import pytest

from backends.trackers import prometheus
from protocols.tracking import StepRecord
from tests.support.trackers import TENSORBOARD, read_events

pytestmark = [pytest.mark.real_time, pytest.mark.filterwarnings("ignore::DeprecationWarning")]  # the libraries' own


def record(step: int) -> StepRecord:
    return StepRecord(step=step, metrics={"reward/mean": step / 2, "loss": -0.25})


async def test_tensorboard_forgets_what_was_taken_back(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    for steps in ((1, 2, 3), (2, 3, 4)):
        async with TENSORBOARD.open(tmp_path) as tracker:
            await tracker.rewind(steps[0] - 1)
            for step in steps:
                await tracker.log(record(step))
    assert read_events(tmp_path) == [record(step) for step in (1, 2, 3, 4)]


async def test_the_official_parser_reads_what_prometheus_scrapes() -> None:
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
