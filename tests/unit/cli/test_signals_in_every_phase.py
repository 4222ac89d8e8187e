"""SIGINT and SIGTERM while a run starts, publishes, trains, generates and saves; then it goes on."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from conductor.cli.main import main
from tests.unit.cli.test_commands import JOB

pytestmark = pytest.mark.real_time

PROGRAM = [sys.executable, "-c", "from conductor.cli.main import main; main()"]
PATIENCE_S = 30.0


def write_job(folder: Path, section: str, stuck: str) -> Path:
    text = JOB.replace("steps = 2", "steps = 4").replace("trackers = []", "checkpoint = { every = 2 }")
    path = folder / "job.toml"
    path.write_text(text.replace(f':{section}"\n', f':{section}"\nstuck = "{stuck}"\n'), encoding="utf-8")
    (folder / "stuck").touch()
    return path


def stop_when_reached(job: Path, signum: signal.Signals) -> tuple[int, str]:
    """Run a job until it is stuck, send a signal; returns exit code and standard error."""
    command = [*PROGRAM, "run", str(job), "--run-dir", str(job.parent / "run"), "--resume"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)  # noqa: S603
    deadline = time.monotonic() + PATIENCE_S
    while not (job.parent / "reached").exists():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signum)
    _, stderr = process.communicate(timeout=PATIENCE_S)
    return process.returncode, stderr


def go_on(job: Path) -> dict[str, Any]:
    (job.parent / "stuck").unlink()
    arguments = ["run", str(job), "--run-dir", str(job.parent / "run"), "--resume", "--quiet", "--json"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    ("section", "stuck", "signum"),
    [
        ("train", "open", signal.SIGTERM),
        ("engine", "publish", signal.SIGINT),
        ("train", "step", signal.SIGTERM),
        ("train", "save", signal.SIGTERM),
    ],
)
def test_the_first_signal_ends_a_run_in_order_and_it_goes_on_later(
    tmp_path: Path, section: str, stuck: str, signum: signal.Signals
) -> None:
    """I57: a flag that is looked at between two steps only; half a checkpoint; a hanging start."""
    job = write_job(tmp_path, section, stuck)
    code, stderr = stop_when_reached(job, signum)
    assert code == 128 + signum, stderr
    assert f"{signum.name}: stopping" in stderr
    assert "Traceback" not in stderr
    if stuck != "open":
        assert f"conductor resume {tmp_path / 'run'}" in stderr
    saved = {path.name for path in (tmp_path / "run" / "checkpoints").glob("*")}
    # what was trained is saved, and a save that had begun is finished; steps go on beside it
    beside = {"step-3", "step-4"} if stuck == "save" else set[str]()
    assert saved - beside == {"open": set(), "publish": {"step-1"}, "step": {"step-1"}, "save": {"step-2"}}[stuck]
    found = go_on(job)
    assert found["steps"] == 4
    assert found["accounts"] == {"admitted": 8, "committed": 8, "filtered": 0, "dropped": 0, "open": 0}
    steps = [json.loads(line)["step"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3, 4]


def test_a_full_disk_ends_the_run_and_it_goes_on_when_there_is_room(tmp_path: Path) -> None:
    """Issue C: the record takes nothing any more; nothing is acted on that is not written."""
    job = tmp_path / "job.toml"
    job.write_text(JOB.replace("steps = 2", "steps = 50"), encoding="utf-8")
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, resource.RLIM_INFINITY)); "
    arguments = ["run", str(job), "--run-dir", str(tmp_path / "run"), "--quiet"]
    command = [sys.executable, "-c", f"{limited}from conductor.cli.main import main; main()", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)  # noqa: S603
    assert done.returncode == 3, done.stderr
    assert "ledger.sqlite" in done.stderr
    result = CliRunner().invoke(main, ["resume", str(tmp_path / "run"), "--quiet"])
    assert result.exit_code == 0, result.output
    assert "100 admitted = 100 trained" in result.stdout


def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path: Path) -> None:
    """Issue C: before anything is trained that could not be kept."""
    job = tmp_path / "job.toml"
    job.write_text(JOB, encoding="utf-8")
    result = CliRunner().invoke(main, ["run", str(job), "--run-dir", "/proc/conductor/run", "--quiet"])
    assert result.exit_code == 2
    assert "run_dir = '/proc/conductor/run': it cannot be made" in result.stderr


def test_a_second_controller_on_the_folder_is_refused(tmp_path: Path) -> None:
    """Issue C: two controllers would train everything twice."""
    job = write_job(tmp_path, "train", "step")
    command = [*PROGRAM, "run", str(job), "--run-dir", str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:  # noqa: S603
        deadline = time.monotonic() + PATIENCE_S
        while not (tmp_path / "reached").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        result = CliRunner().invoke(main, ["resume", str(tmp_path / "run"), "--quiet"])
        inspected = CliRunner().invoke(main, ["inspect", str(tmp_path / "run"), "--json"])
        process.kill()
    assert result.exit_code == 2
    assert str(process.pid) in result.stderr
    assert inspected.exit_code == 0, inspected.output
    assert json.loads(inspected.stdout)["groups"]["open"]
