"""The commands, over scripted workloads: what they print, where, and how they exit."""

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from conductor.cli.main import main

SCRIPTED = "tests.unit.cli.scripted"
pytestmark = pytest.mark.real_time  # the commands start a loop of their own

JOB = """
name = "scripted"
steps = 2
batch_groups = 2
group_size = 2
lag_interval_s = 0
trackers = []
sampling = { max_tokens = 4 }
""" + "".join(
    f'\n[{name}]\nkind = "{SCRIPTED}:{name}"\n' for name in ("prompts", "reward", "episode", "engine", "train")
)


@pytest.fixture
def job(tmp_path: Path) -> str:
    path = tmp_path / "job.toml"
    path.write_text(JOB, encoding="utf-8")
    return str(path)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def run(job: str, *arguments: str) -> Result:
    return invoke("run", job, "--run-dir", str(Path(job).parent / "run"), *arguments)


def test_validate_says_ok_and_what_the_job_would_do(job: str) -> None:
    result = invoke("validate", job)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines()[:2] == [
        "ok",
        "  scripted: 2 steps of 4 samples (2 prompts x 2), at most 4 tokens each",
    ]


def test_validate_lists_every_problem_and_counts_them(job: str) -> None:
    result = invoke("validate", job, "--set", "group_size=1", "--set", "train.fals=bug", "--set", "steps=0")
    assert result.exit_code == 2
    assert [line.split(":")[0] for line in result.stdout.splitlines()] == [
        "the job has 3 problems",
        "  steps = 0",
        "  group_size = 1",
        "  train.fals = 'bug'",
    ]


def test_validate_writes_nothing(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(job).parent)
    assert invoke("validate", job).exit_code == 0
    assert sorted(path.name for path in Path(job).parent.iterdir()) == ["job.toml"]


def test_a_job_that_is_wrong_exits_with_2_before_anything_starts(job: str) -> None:
    result = run(job, "--set", "steps=many")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == ("the job has 1 problem:\n  steps = 'many': is text; give a whole number of at least 1\n")
    assert not (Path(job).parent / "run").exists()


def test_a_job_that_is_not_there_exits_with_2() -> None:
    result = invoke("run", "nowhere.toml")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[1] == "  job = 'nowhere.toml': there is no such file; check the path"


def test_a_run_prints_a_line_a_step_and_a_table(job: str) -> None:
    result = run(job)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert [line.split("  ")[0] for line in lines if line.startswith("step")] == ["step 1/2", "step 2/2"]
    assert "4 admitted = 4 trained + 0 filtered + 0 dropped + 0 open" in result.stdout
    assert str(Path(job).parent / "run") in result.stdout


def test_the_log_goes_to_stderr_and_to_the_runs_folder(job: str) -> None:
    result = run(job)
    lines = (Path(job).parent / "run" / "log.jsonl").read_text(encoding="utf-8").splitlines()
    events = [json.loads(line)["event"] for line in lines]
    assert events.count("step.trained") == 2
    assert "checkpoint.saved" in events
    assert "checkpoint.saved" in result.stderr
    assert "step.trained" not in result.stderr


def test_json_is_the_last_line_and_progress_goes_to_stderr(job: str) -> None:
    result = run(job, "--json")
    assert result.exit_code == 0
    (line,) = result.stdout.splitlines()
    found: dict[str, Any] = json.loads(line)
    assert found.pop("samples_per_s") > 0
    assert found.pop("checkpoint").startswith(str(Path(job).parent / "run"))
    assert found == {
        "steps": 2,
        "reward_first": 0.5,
        "reward_last": 0.5,
        "accounts": {"admitted": 4, "committed": 4, "filtered": 0, "dropped": 0, "open": 0},
        "run_dir": str(Path(job).parent / "run"),
    }
    assert "step 2/2" in result.stderr


def test_quiet_leaves_the_result(job: str) -> None:
    result = run(job, "--quiet")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "step 1/2" not in result.stdout
    assert "4 admitted" in result.stdout


def test_quiet_json_is_one_line(job: str) -> None:
    result = run(job, "--quiet", "--json")
    assert (len(result.stdout.splitlines()), result.stderr) == (1, "")


def test_a_folder_that_holds_a_run_is_not_written_over(job: str) -> None:
    assert run(job, "--quiet").exit_code == 0
    result = run(job, "--quiet")
    assert result.exit_code == 2
    assert "it holds a run; go on with it (conductor resume FOLDER, run --resume)" in result.stderr


def test_the_last_line_of_a_failed_run_says_what_failed_what_is_kept_and_how_to_go_on(job: str) -> None:
    result = run(job, "--set", "reward.fails=reward", "--quiet")
    assert result.exit_code == 3
    assert result.stdout == ""
    last = result.stderr.splitlines()[-1]
    assert last.startswith("failed: ")
    folder = Path(job).parent / "run"
    kept = f"kept: the record, and no checkpoint; go on with: conductor resume {folder}"
    assert last.endswith(f"; the log is {folder / 'log.jsonl'}; {kept}")
    assert "Traceback (most recent call last)" not in result.stderr


def test_the_first_failure_of_a_users_reward_is_shown_with_its_detail(job: str) -> None:
    """A user whose reward fails must see why without searching a log."""
    result = run(job, "--set", "reward.fails=reward")
    assert result.stderr.count("reward.failed") == 1
    assert "ZeroDivisionError: in reward.py" in result.stderr


@pytest.mark.parametrize(("fails", "code", "error"), [("rule", 4, "InvariantError"), ("bug", 1, "ZeroDivisionError")])
def test_where_the_program_is_to_blame_there_is_a_traceback(job: str, fails: str, code: int, error: str) -> None:
    result = run(job, "--set", f"train.fails={fails}", "--quiet")
    assert result.exit_code == code
    assert "Traceback (most recent call last)" in result.stderr
    assert result.stderr.splitlines()[-1].startswith(f"failed: {error}")


def test_help_names_the_commands_and_the_exit_codes() -> None:
    result = invoke("--help")
    assert result.exit_code == 0
    assert "Exit codes" in result.stdout
    assert isinstance(main, click.Group)
    assert sorted(main.commands) == [
        "checkpoint", "engine", "init", "inspect", "plan", "report", "resume", "run", "scale", "simulate", "status",
        "stop", "trace", "validate", "why",
    ]  # fmt: skip
    for command in main.commands:
        assert f"\n  {command} " in result.stdout
