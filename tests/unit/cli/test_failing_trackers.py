"""Whole runs whose trackers fail: they go on to their end, as quickly, and say what was not delivered."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from conductor.cli.main import main
from conductor.loading import read_job
from conductor.review.report import report_on
from tests.unit.cli import hanging
from tests.unit.cli.test_commands import JOB

STEPS = 6

pytestmark = pytest.mark.real_time


@pytest.fixture
def port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


@pytest.fixture(autouse=True)
def _let_it_answer() -> Iterator[None]:
    hanging.may_answer.clear()
    yield
    hanging.may_answer.set()


def test_a_run_with_one_that_is_down_and_one_that_hangs_is_a_run_like_any_other(tmp_path: Path, port: int) -> None:
    """Issue H: no step waits for a tracker. The hanging one answers when the run is long over."""
    pytest.importorskip("prometheus_client")
    trackers = f"""trackers = [
        {{ kind = "jsonl" }},
        {{ kind = "prometheus", port = {port} }},
        {{ kind = "tests.unit.cli.hanging:tracker" }},
    ]"""
    job, run_dir = tmp_path / "job.toml", tmp_path / "run"
    job.write_text(JOB.replace("trackers = []", trackers).replace("steps = 2", f"steps = {STEPS}"), encoding="utf-8")
    done = CliRunner().invoke(main, ["run", str(job), "--run-dir", str(run_dir)])
    assert done.exit_code == 0, done.output
    assert not hanging.may_answer.is_set()
    steps = [json.loads(line)["step"] for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, STEPS + 1))
    warned = [line for line in done.stderr.splitlines() if "tracker.failed" in line]
    assert [sum(f"tracker={kind}" in line for line in warned) for kind in ("prometheus", "hanging")] == [1, 1]
    lines = map(json.loads, (run_dir / "log.jsonl").read_text().splitlines())
    assert {line["tracker"] for line in lines if line["event"] == "tracker.failed"} == {"prometheus", "hanging"}
    assert kept(run_dir, "prometheus") == steps
    assert kept(run_dir, "hanging") == steps[1:]  # the first one is in its hands
    told = {one.kind: one for one in report_on(read_job(str(run_dir)), live=False).warnings}
    assert told["tracker.prometheus"].times == STEPS
    assert "Address already in use" in told["tracker.prometheus"].first
    assert told["tracker.hanging"].times == STEPS - 1


def kept(run_dir: Path, kind: str) -> list[int]:
    lines = (run_dir / f"undelivered-{kind}.jsonl").read_text().splitlines()
    return sorted(json.loads(line)["step"] for line in lines)
