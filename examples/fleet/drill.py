"""The job beside this file, while an engine and a trainer rank are killed: does it learn all the same?

    python examples/fleet/drill.py [RUN_DIR]

Kills one engine, and some steps after it was replaced one rank, each with SIGKILL. The last line is one JSON object;
the exit code is 1 unless the run learned (``reward_last`` of at least 0.9), both failovers are in its record and
brought the worker back, no other process was replaced, the books balance, and no process is left.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conductor.control.client import ask
from conductor.control.messages import Request
from conductor.core.status import RunStatus

JOB = Path(__file__).with_name("job.toml")
CONDUCTOR = (sys.executable, "-c", "from conductor.cli.main import main; main()")
VICTIMS = ("rollout/1", "policy/0")
FIRST_AT = 5
"""Step at which the first one is killed; the next one, so many steps after the one before was replaced."""

LEARNED = 0.9
LOOK_S = 0.2
PATIENCE_S = 600.0


@dataclass
class Drill:
    """What is seen of the run.

    Attributes:
        pids: Of every process that any worker ever had.
        changed: Workers whose process changed, in order.
    """

    run_dir: Path
    run: subprocess.Popen[str]
    pids: set[int] = field(default_factory=set[int])
    changed: list[str] = field(default_factory=list[str])
    _before: dict[str, int] = field(default_factory=dict[str, int])

    def until(self, reached: Callable[[RunStatus], bool]) -> RunStatus:
        """Look at the run again and again, until it has come somewhere."""
        give_up = time.monotonic() + PATIENCE_S
        while time.monotonic() < give_up and self.run.poll() is None:
            status = self._look()
            if status is not None and reached(status):
                return status
            time.sleep(LOOK_S)
        raise SystemExit(
            f"the run ended, or stands still, before it was killed as planned; see {self.run_dir}/log.jsonl"
        )

    def kill(self, worker: str) -> None:
        """Kill the process of a worker, and wait until another one is in its place."""
        before = self.until(lambda status: bool(status.workers)).incidents
        os.kill(self._before[worker], signal.SIGKILL)
        self.until(lambda status: status.incidents > before)

    def _look(self) -> RunStatus | None:
        reply = ask(self.run_dir, Request(command="status"), patience_s=30.0)
        status = None if reply is None else reply.status
        for worker in () if status is None else status.workers:
            if worker.pid is None or not worker.running:
                continue
            if self._before.setdefault(worker.name, worker.pid) != worker.pid:
                self.changed.append(worker.name)
            self._before[worker.name] = worker.pid
            self.pids.add(worker.pid)
        return status

    def left(self) -> list[int]:
        """Return the processes of workers that are still there."""
        return sorted(pid for pid in self.pids if Path(f"/proc/{pid}").exists())


def conductor(*arguments: str) -> Any:
    """Run a command that prints one JSON object."""
    done = subprocess.run([*CONDUCTOR, *arguments, "--json"], stdout=subprocess.PIPE, check=False)  # noqa: S603
    return json.loads(done.stdout)


def main(run_dir: Path) -> int:
    """Run, kill, check; returns the exit code."""
    command = [*CONDUCTOR, "run", str(JOB), "--run-dir", str(run_dir), "--quiet", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:  # noqa: S603
        try:
            drill = Drill(run_dir, run)
            for victim in VICTIMS:
                began = drill.until(lambda status: status.phase == "training").step
                drill.until(lambda status, began=began: status.step >= began + FIRST_AT)
                drill.kill(victim)
            printed, _ = run.communicate(timeout=PATIENCE_S)
        finally:
            run.kill()
    result = json.loads(printed.splitlines()[-1]) if run.returncode == 0 else {}
    incidents = conductor("inspect", str(run_dir), "--incidents")
    found = {
        "reward_first": result.get("reward_first"),
        "reward_last": result.get("reward_last"),
        "steps": result.get("steps"),
        "replaced": drill.changed,
        "incidents": [
            {"workers": one["workers"], "verdict": one["verdict"], "seconds": round(one["seconds"], 1)}
            for one in incidents
        ],
        "balanced": conductor("inspect", str(run_dir))["balanced"],
        "left": drill.left(),
        "run_dir": str(run_dir),
    }
    right = (
        (found["reward_last"] or 0.0) >= LEARNED
        and drill.changed == list(VICTIMS)
        and [(one["workers"], one["verdict"]) for one in incidents] == [([name], "restored") for name in VICTIMS]
        and found["balanced"]
        and not found["left"]
    )
    print(json.dumps({"right": right, **found}))
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="conductor-drill-")).resolve()))
