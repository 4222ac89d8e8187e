"""Trackers over libraries: what each of them does beside the contract of all."""

import urllib.request
from pathlib import Path

import anyio.to_thread
import pytest

from backends.trackers import prometheus
from protocols.tracking import StepRecord
from tests.support.trackers import TENSORBOARD, WANDB, read_events, read_offline_run

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


async def test_wandb_leaves_no_process_and_no_run_of_others_is_touched(tmp_path: Path) -> None:
    """Its process outlived the run; and where somebody else has a run in this process, theirs would be finished."""
    library = pytest.importorskip("wandb")
    own = library.init(mode="offline", dir=str(tmp_path), settings=library.Settings(silent=True, console="off"))
    (tmp_path / "ours").mkdir()
    async with WANDB.open(tmp_path / "ours") as tracker:
        await tracker.log(record(1))
    assert read_offline_run(tmp_path / "ours") == [record(1)]
    assert library.run is own
    own.log({"loss": 1.0})
    own.finish()
    async with WANDB.open(tmp_path / "ours") as tracker:
        await tracker.log(record(2))
    assert read_offline_run(tmp_path / "ours") == [record(1), record(2)]
    assert not [name for name in names_of_children() if "wandb" in name]


def names_of_children() -> list[str]:
    lists = [path.read_text(encoding="utf-8") for path in Path("/proc/self/task").glob("*/children")]
    return [Path(f"/proc/{child}/comm").read_text(encoding="utf-8") for child in " ".join(lists).split()]
