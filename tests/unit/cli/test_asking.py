"""``status``, ``why``, ``stop`` and ``checkpoint`` of a run in another process, and of one that is no more."""

import json
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from conductor.cli.main import main
from conductor.cli.watching import watching
from conductor.core.status import RunStatus
from tests.unit.cli.test_commands import JOB
from tests.unit.cli.test_signals_in_every_phase import PATIENCE_S, PROGRAM, write_job

pytestmark = pytest.mark.real_time


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@contextmanager
def running(folder: Path, section: str, stuck: str) -> Generator[subprocess.Popen[str]]:
    """A run in a process of its own, at the place where it is stuck."""
    job = write_job(folder, section, stuck)
    command = [*PROGRAM, "run", str(job), "--run-dir", str(folder / "run"), "--resume"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:  # noqa: S603
        deadline = time.monotonic() + PATIENCE_S
        while not (folder / "reached").exists():
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.01)
        try:
            yield process
        finally:
            process.kill()


def shown(folder: Path, command: str = "status") -> dict[str, Any]:
    result = invoke(command, str(folder / "run"), "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_run_that_trains_is_asked(tmp_path: Path) -> None:
    with running(tmp_path, "train", "step"):
        found = shown(tmp_path)
        assert found["live"]
        status = found["status"]
        assert (status["name"], status["phase"], status["step"], status["steps"]) == ("scripted", "training", 1, 4)
        assert [wait["call"] for wait in status["waits"]] == ["Trainer.train_step"]
        engine = {"name": "rollout/0", "answers": True, "evaluates": False, "version": 1, "live": 0, "paused": False}
        engine |= {"held": 0, "allowed": None}
        assert status["engines"][0] == engine
        assert status["states"] == {"claimed": 2}
        lines = invoke("status", str(tmp_path / "run")).stdout.splitlines()
        assert lines[0].startswith("run scripted, training: step 1 of 4 after ")
        assert "engine   rollout/0 serves v1, with 0 live requests" in lines
        assert "groups   4 admitted = 2 committed + 0 filtered + 0 dropped + 2 open" in lines
        why = invoke("why", str(tmp_path / "run")).stdout.splitlines()
        assert why[0] == "the trainer is at work on step 2"
        assert why[1].startswith("Trainer.train_step of D1 for ")
        assert why[-1].startswith("unblocked by: the end of Trainer.train_step of D1, at the latest in 3")
        assert shown(tmp_path, "why")["waits_for"][0] == why[0]


def test_a_run_that_is_still_opening_its_ports_is_asked_and_stopped(tmp_path: Path) -> None:
    """A model that takes an hour to load is a run like any other, though its folder holds no job yet."""
    with running(tmp_path, "train", "open") as process:
        found = shown(tmp_path)["status"]
        assert found["phase"] == "starting"
        assert [(wait["call"], wait["of"]) for wait in found["waits"]] == [("Launcher.launch", "policy/0")]
        assert invoke("checkpoint", str(tmp_path / "run")).stderr == "the run has not begun to train\n"
        assert invoke("stop", str(tmp_path / "run")).exit_code == 0
        _, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, stderr
    assert stderr.splitlines()[-1].startswith("stopped; the log is ")
    assert not (tmp_path / "run" / "control.sock").exists()


def test_a_run_that_is_stopped_saves_and_goes_on_later(tmp_path: Path) -> None:
    """As with a signal (I57), from a machine that cannot send one."""
    with running(tmp_path, "train", "step") as process:
        result = invoke("stop", str(tmp_path / "run"))
        assert result.stdout == "stopping: what is lent out is aborted, what was trained is saved\n"
        _, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    run_dir = tmp_path / "run"
    kept = f"kept: {run_dir / 'checkpoints' / 'step-1'}; go on with: conductor resume {run_dir}"
    assert stderr.splitlines()[-1] == f"stopped; the log is {run_dir / 'log.jsonl'}; {kept}"
    assert invoke("status", str(tmp_path / "run")).stdout.splitlines() == [
        "the run was stopped",
        "1 of 4 steps are trained, with 2 groups; 2 groups are open",
        "the last checkpoint is step-1",
        f"go on with: conductor resume {tmp_path / 'run'}",
    ]
    (tmp_path / "stuck").unlink()
    assert invoke("resume", str(tmp_path / "run"), "--quiet").exit_code == 0
    found = shown(tmp_path)
    assert (found["live"], found["ended"], found["record"]["steps"]) == (False, "finished", 4)
    assert invoke("why", str(tmp_path / "run")).stdout.splitlines() == [
        "the run is finished",
        "4 of 4 steps are trained, with 8 groups; 0 groups are open",
        "the last checkpoint is step-4",
    ]


def test_a_run_that_was_killed_is_told_of_from_its_record(tmp_path: Path) -> None:
    with running(tmp_path, "train", "step") as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert (tmp_path / "run" / "control.sock").exists(), "nobody could remove it"
    lines = invoke("status", str(tmp_path / "run")).stdout.splitlines()
    assert lines[0] == "nobody answers for the run: it was killed, or goes on in a process that serves no socket"
    assert lines[1] == "1 of 4 steps are trained, with 2 groups; 2 groups are open"
    stopped = invoke("stop", str(tmp_path / "run"))
    assert stopped.exit_code == 2
    assert stopped.stderr.splitlines() == lines
    (tmp_path / "stuck").unlink()
    assert invoke("run", str(tmp_path / "job.toml"), "--run-dir", str(tmp_path / "run"), "--resume").exit_code == 0


def test_a_run_that_failed_is_told_of_with_its_error(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text(JOB, encoding="utf-8")
    assert invoke("run", str(job), "--run-dir", str(tmp_path / "run"), "--set", "train.fails=rule").exit_code == 4
    lines = invoke("why", str(tmp_path / "run")).stdout.splitlines()
    assert lines[0] == "the run failed: InvariantError: a row is named twice"


def test_a_run_whose_record_ended_with_it_says_so(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text(JOB, encoding="utf-8")
    assert invoke("run", str(job), "--run-dir", str(tmp_path / "run"), "--set", "ledger=memory").exit_code == 0
    assert invoke("status", str(tmp_path / "run")).stdout.splitlines() == [
        "the run is finished",
        "its record ended with its process",
    ]


@pytest.mark.parametrize("command", ["status", "why", "stop", "checkpoint"])
def test_a_folder_without_a_run_is_refused(tmp_path: Path, command: str) -> None:
    result = invoke(command, str(tmp_path))
    assert result.exit_code == 2
    assert "no run has begun there" in result.stderr


def test_a_second_controller_leaves_the_first_ones_socket(tmp_path: Path) -> None:
    with running(tmp_path, "train", "step"):
        command = [*PROGRAM, "resume", str(tmp_path / "run")]
        second = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)  # noqa: S603
        assert second.returncode == 2
        assert shown(tmp_path)["live"]


def test_a_job_with_an_evaluation_runs_tells_and_goes_on(tmp_path: Path) -> None:
    """The job that the folder keeps holds the sections of the evaluation as the job file has them."""
    job = tmp_path / "job.toml"
    job.write_text(
        JOB + '\n[evaluation]\nevery = 1\nsize = 3\nsamples = 2\nprompts = "tests.unit.cli.scripted:prompts"\n'
        'reward = { kind = "tests.unit.cli.scripted:reward" }\n',
        encoding="utf-8",
    )
    assert "evaluated every 1 steps and at the end, on 3 prompts x 2" in invoke("validate", str(job)).stdout
    result = invoke("run", str(job), "--run-dir", str(tmp_path / "run"), "--quiet", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [(done["step"], done["metrics"]["eval/reward/mean"]) for done in found["evaluations"]] == [
        (1, 0.5),
        (2, 0.5),
    ]
    kept = json.loads((tmp_path / "run" / "job.json").read_text())["evaluation"]
    assert kept["prompts"] == {"kind": "tests.unit.cli.scripted:prompts"}
    resumed = invoke(
        "run", str(job), "--run-dir", str(tmp_path / "run"), "--resume", "--quiet", "--json",
        "--set", "steps=3", "--set", "evaluation.every=2",
    )  # fmt: skip
    assert resumed.exit_code == 0, resumed.output
    assert [done["step"] for done in json.loads(resumed.stdout)["evaluations"]] == [1, 2, 3]
    again = invoke("resume", str(tmp_path / "run"))
    assert again.exit_code == 0, again.output
    assert "0.500 at step 1 -> 0.500 at step 3" in again.stdout


def test_a_display_is_told_of_its_run_until_it_ends(tmp_path: Path) -> None:
    """It asks as anybody could, so what it shows can neither slow the run down nor end it."""
    told: queue.Queue[RunStatus] = queue.Queue()
    with running(tmp_path, "train", "step") as process:
        with watching(str(tmp_path / "run"), told.put):
            status = told.get(timeout=PATIENCE_S)
            assert (status.name, status.step) == ("scripted", 1)
            process.kill()
            process.wait()
        assert all(thread.name != "live status" for thread in threading.enumerate())


def test_a_display_of_a_run_that_is_not_there_waits_for_it(tmp_path: Path) -> None:
    with watching(str(tmp_path), lambda _: pytest.fail("nobody answers there")):
        pass
    with watching(None, None):
        assert all(thread.name != "live status" for thread in threading.enumerate())
