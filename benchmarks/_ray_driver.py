"""The controller of a run on a cluster that is there already is killed, and the run resumed."""

import signal
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from conductor.control.client import ask
from conductor.control.messages import Request

_COMMAND = (sys.executable, "-c", "from conductor.cli.main import main; main()")
_GONE_S = 60.0
_LOOK_S = 0.2


def kill_and_resume(job: Path, overrides: Sequence[str], address: str, run_dir: Path) -> tuple[float, list[str]]:
    """Train, kill the controller, see its workers end, resume, train, end.

    Returns:
        Seconds from the start of the resumed run to its first step, and what is not as it must be.
    """
    wrong: list[str] = []
    words = [word for one in (*overrides, f"backend.address={address}") for word in ("--set", one)]
    with _running("run", str(job), "--backend", "ray", *words, "--run-dir", str(run_dir)) as run:
        _train(run, 3)
        workers = _workers(run_dir)
        run.kill()
        run.wait()
    if not workers:
        wrong.append("no worker had a process of its own")
    if left := _left(workers):
        wrong.append(f"{len(left)} workers outlived their controller by {_GONE_S:g} s")
    began = time.monotonic()
    with _running("resume", str(run_dir)) as run:
        _train(run, 1)
        back_s = time.monotonic() - began
        _train(run, 1)
        workers = _workers(run_dir)
        run.send_signal(signal.SIGTERM)
        run.communicate()
        if run.returncode != 128 + signal.SIGTERM:
            wrong.append(f"the resumed run exited with {run.returncode}")
    if left := _left(workers):
        wrong.append(f"{len(left)} workers outlived the resumed run")
    return back_s, wrong


@contextmanager
def _running(*words: str) -> Generator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    with subprocess.Popen([*_COMMAND, *words], stdout=pipe, stderr=subprocess.STDOUT, text=True) as run:  # noqa: S603
        try:
            yield run
        finally:
            run.kill()


def _train(run: subprocess.Popen[str], steps: int) -> None:
    """Wait for steps.

    Raises:
        RuntimeError: The run ended before.
    """
    assert run.stdout is not None
    said: list[str] = []
    for line in run.stdout:
        said.append(line)
        steps -= line.startswith("step ")
        if not steps:
            return
    raise RuntimeError("the run ended: " + "".join(said[-20:]))


def _workers(run_dir: Path) -> list[int]:
    reply = ask(run_dir, Request(command="status"), patience_s=30.0)
    status = None if reply is None else reply.status
    return [worker.pid for worker in (() if status is None else status.workers) if worker.pid is not None]


def _left(pids: list[int]) -> list[int]:
    until = time.monotonic() + _GONE_S
    while (left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]) and time.monotonic() < until:
        time.sleep(_LOOK_S)
    return left
