"""``conductor init``."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from conductor.cli.main import main
from conductor.loading import load_config

pytestmark = pytest.mark.real_time


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@pytest.mark.slow
def test_what_init_writes_runs_as_it_is_and_learns(tmp_path: Path) -> None:
    """Issue H: the first thing that a newcomer does, in an empty folder."""
    assert invoke("init", str(tmp_path / "new")).exit_code == 0
    job, run_dir = str(tmp_path / "new" / "job.toml"), str(tmp_path / "run")
    assert invoke("validate", job).stdout.startswith("ok\n")
    result = invoke("run", job, "--run-dir", run_dir, "--quiet", "--json")
    assert result.exit_code == 0, result.output
    run = load_config(job)
    assert (Path(run_dir) / "checkpoints" / f"step-{run.steps}").is_dir()
    first, last = (float(result.stdout.split(f'"reward_{name}":')[1].split(",")[0]) for name in ("first", "last"))
    assert last > first + 0.2


def test_init_writes_nothing_over(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text("mine", encoding="utf-8")
    result = invoke("init", str(tmp_path))
    assert (result.exit_code, result.stderr) == (
        2,
        f"{tmp_path / 'task.py'} would be written over; name another folder\n",
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["task.py"]
