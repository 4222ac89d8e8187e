"""Kill a run with SIGKILL in the middle, go on with it, and prove from its record that nothing was lost."""

import signal
import subprocess
import sys
import time
from pathlib import Path

JOB = Path(__file__).parents[1] / "reverse" / "job.toml"
CONDUCTOR = [sys.executable, "-m", "conductor"]
SMALL = ["steps=8", "batch_groups=8", "group_size=8", "checkpoint.every=2"]


def begin(run_dir: Path) -> subprocess.Popen[bytes]:
    """Start the run in a process of its own."""
    settings = [word for value in SMALL for word in ("--set", value)]
    arguments = ["run", str(JOB), "--run-dir", str(run_dir), "--quiet", *settings]
    return subprocess.Popen([*CONDUCTOR, *arguments])  # noqa: S603 - our own command


def kill_after(checkpoint: Path, run: subprocess.Popen[bytes]) -> None:
    """Kill it when a checkpoint is there."""
    while not checkpoint.exists() and run.poll() is None:
        time.sleep(0.01)
    run.kill()
    if run.wait() != -signal.SIGKILL:
        sys.exit("the run was over before it could be killed")


def main(run_dir: Path) -> None:
    """Kill, go on, prove."""
    kill_after(run_dir / "checkpoints" / "step-2", begin(run_dir))
    print("killed; its record and its checkpoints are there:", *sorted(path.name for path in run_dir.iterdir()))
    subprocess.run([*CONDUCTOR, "resume", str(run_dir), "--quiet"], check=True)  # noqa: S603 - as above
    subprocess.run([*CONDUCTOR, "inspect", str(run_dir)], check=True)  # noqa: S603 - as above


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else f"runs/killed-{time.strftime('%Y%m%d-%H%M%S')}"))
