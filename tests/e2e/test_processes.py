"""Whole runs with engine, trainer, episodes and rewards each in a process of its own."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from conductor import Conductor, load_config
from conductor.observe.observer import Unwatched
from conductor.result import Accounts
from protocols.tracking import StepRecord
from tests.support.leftovers import marked, names_in
from tests.support.pids import Watched
from tests.support.small_runs import JOB, ROOT, SMALL, finish, learned, samples

pytestmark = [pytest.mark.real_time, pytest.mark.slow, pytest.mark.timeout(170)]


async def test_a_run_on_processes_learns_the_same_to_the_last_bit(tmp_path: Path) -> None:
    """Where a workload runs is nobody's business: at max_age 0, one thread, and a deterministic engine."""
    folders = {kind: tmp_path / kind for kind in ("inproc", "processes")}
    for folder in folders.values():
        folder.mkdir()
    inproc, its_events = await finish(folders["inproc"], "backend.kind=inproc")
    place = f"backend.payload_dir={folders['processes']}"
    processes, events = await finish(folders["processes"], "backend.kind=processes", place)
    assert len(samples(events)) == 16
    assert samples(events) == samples(its_events)
    assert learned(processes) == learned(inproc)
    assert processes.accounts == inproc.accounts
    assert names_in(folders["processes"]) == ["run"], "no payload is left"


class Until(Unwatched):
    """Cancels a run behind a step, and remembers which processes it had.

    Args:
        scope: Around the run.
        place: Where the run keeps its bulk data.
        step: Behind which.
    """

    def __init__(self, scope: anyio.CancelScope, place: Path, step: int) -> None:
        self._scope = scope
        self._place = place
        self._step = step
        self.pids: list[int] = []

    def stepped(self, record: StepRecord, accounts: Accounts) -> None:
        """Cancel behind the step."""
        if record.step == self._step:
            self.pids = marked(self._place)
            self._scope.cancel()


async def test_a_cancelled_run_leaves_nothing(tmp_path: Path) -> None:
    """I75: neither process nor payload, and the state of the run is saved."""
    overrides = [*SMALL, "steps=1000", "max_age=1", "backend.kind=processes", f"backend.payload_dir={tmp_path}"]
    cfg = load_config(JOB, overrides=overrides, run_dir=str(tmp_path / "run"))
    with anyio.CancelScope() as scope:
        observer = Until(scope, tmp_path, step=2)
        await Conductor.run(cfg, observer=observer)
    assert scope.cancelled_caught
    assert len(observer.pids) == 5, "trainer, engine, episodes, rewards, and the process that calls the function"
    assert marked(tmp_path) == []
    assert names_in(tmp_path) == ["run"]
    assert (tmp_path / "run" / "checkpoints").exists()


@contextmanager
def running(folder: Path) -> Generator[subprocess.Popen[str]]:
    """Run the small job from the command line."""
    overrides = [*SMALL, "steps=1000", "backend.kind=processes", f"backend.payload_dir={folder}"]
    command = [sys.executable, "-c", "from conductor.cli.main import main; main()", "run", str(JOB)]
    command += [word for override in overrides for word in ("--set", override)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(  # noqa: S603 - our own command
        [*command, "--run-dir", str(folder / "run")],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("signals", "code"),
    [([signal.SIGTERM], 143), ([signal.SIGINT, signal.SIGINT], 130)],
)
def test_a_signal_ends_every_process_of_a_run(tmp_path: Path, signals: list[signal.Signals], code: int) -> None:
    """The first lets it clean up, the second ends it where it stands."""
    with running(tmp_path) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("step 2/"):
                break
        pids = marked(tmp_path)
        assert len(pids) == 5
        with Watched(pids) as watched:
            for signum in signals:
                process.send_signal(signum)
                if signum is not signals[-1]:
                    next(line for line in process.stdout if "stopping; once more" in line)
            process.stdout.read()
            assert process.wait() == code
            assert watched.left(1.0) == set()
    if signals == [signal.SIGTERM]:
        assert names_in(tmp_path) == ["run"]
        events = [json.loads(line)["event"] for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
        assert events[-1] == "run.stopped"
