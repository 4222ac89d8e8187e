"""The installed command, in a process of its own."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REVERSE = str(ROOT / "examples" / "reverse" / "job.toml")
CONDUCTOR = [sys.executable, "-c", "from conductor.cli.main import main; main()"]
QUICK = (
    "import sys; from conductor.cli.main import main; assert not {'torch', 'ray', 'transformers'} & set(sys.modules)"
)

pytestmark = pytest.mark.real_time


def command(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(  # noqa: S603 - our own command
        [*CONDUCTOR, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=110, check=False
    )


def test_the_command_line_starts_without_what_only_a_run_needs(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", QUICK], cwd=tmp_path, env=environment, timeout=30, check=True)  # noqa: S603


@pytest.mark.slow
def test_validate_lists_five_planted_mistakes(tmp_path: Path) -> None:
    mistakes = ["stepz=1", "group_size=1", "train.lr=-1", "reward.function=task.py:rewrad", "model.architecture=gtp2"]
    done = command("validate", REVERSE, *(word for mistake in mistakes for word in ("--set", mistake)), folder=tmp_path)
    assert done.returncode == 2, done.stderr
    first, *problems = done.stdout.splitlines()
    assert first == "the job has 5 problems:"
    assert [problem.split(" = ")[0].strip() for problem in problems] == [
        "stepz",
        "group_size",
        "model.architecture",
        "reward.function",
        "train.lr",
    ]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_example_trains_and_leaves_log_metrics_and_checkpoint(tmp_path: Path) -> None:
    done = command("run", REVERSE, "--json", "--set", "steps=3", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["steps"] == 3
    assert result["accounts"]["admitted"] == sum(
        result["accounts"][end] for end in ("committed", "filtered", "dropped", "open")
    )
    run_dir = Path(result["run_dir"])
    assert run_dir.parent == tmp_path / "runs"
    assert len((run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()) == 3
    assert (run_dir / "log.jsonl").exists()
    assert any(Path(result["checkpoint"]).iterdir())


@contextmanager
def running(folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    arguments = [*CONDUCTOR, "run", REVERSE, *options]
    with subprocess.Popen(  # noqa: S603 - our own command
        arguments, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_run_and_says_so(tmp_path: Path, signum: signal.Signals, code: int) -> None:
    with running(tmp_path) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("step 2/"):
                process.send_signal(signum)
                break
        rest = process.stdout.read()
        assert process.wait() == code, rest
    assert f"{signum.name}: stopping" in rest
    assert "Traceback" not in rest
    events = [json.loads(line) for line in next(tmp_path.glob("runs/*/log.jsonl")).read_text().splitlines()]
    assert [event["event"] for event in events if event["level"] in {"error", "critical"}] == []
    assert events[-1]["event"] == "run.stopped"
    assert re.search(r"stopped; the log is .*log\.jsonl", rest.splitlines()[-1])


HANGING = """
import time
def reward(completion):
    time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_second_signal_ends_a_run_whose_event_loop_is_blocked(tmp_path: Path) -> None:
    """A cheap reward that hangs stops the loop, and with it everything that would hear a signal there."""
    (tmp_path / "hangs.py").write_text(HANGING)
    overrides = ["--set", f"reward.function={tmp_path}/hangs.py:reward", "--set", "reward.cheap=true"]
    with running(tmp_path, *overrides) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("training"):
                break
        process.send_signal(signal.SIGINT)
        for line in process.stdout:
            if line.startswith("SIGINT: stopping"):
                break
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130


WITHOUT_TORCH = """
import sys
class Missing:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in {"torch", "transformers", "safetensors", "numpy"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
from conductor.cli.main import main
main()
"""


def test_a_job_that_needs_torch_says_how_to_install_it(tmp_path: Path) -> None:
    """A bare install has no torch: that is a mistake of the job's user, with a mend, and no bug."""
    arguments = [sys.executable, "-c", WITHOUT_TORCH, "validate", REVERSE]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(arguments, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 2, done.stderr
    assert "pip install 'conductor-rl[torch]'" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_a_folder_that_cannot_be_made_is_refused_before_the_run(tmp_path: Path) -> None:
    """A run trained to its end and could not save."""
    done = command("run", REVERSE, "--run-dir", "/proc/nope", folder=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "run_dir" in done.stderr
    assert "training" not in done.stdout
