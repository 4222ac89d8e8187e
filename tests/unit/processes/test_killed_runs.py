"""A controller that is killed: its workers go with it, and the next start removes what no kernel does."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from backends import processes
from backends._leftovers import MARK, carries, end_marked
from backends._state import make_state, remove_state, sweep
from protocols.sections import Site
from tests.support.pids import Watched

pytestmark = pytest.mark.real_time

ROOT = Path(__file__).parents[3]
GONE_S = 1.0

REWARD = """
import os, time
def reward(completion):
    with open("{fifo}", "w") as fifo:
        fifo.write(str(os.getpid()))
    time.sleep(600)
"""


@contextmanager
def running(place: Path, folder: Path) -> Generator[tuple[subprocess.Popen[str], dict[str, list[int]]]]:
    """Run a controller in a process of its own, with a probe, a hanging reward and two strays."""
    fifo = folder / "fifo"
    os.mkfifo(fifo)
    (folder / "reward.py").write_text(REWARD.format(fifo=fifo))
    command = [sys.executable, "-m", "tests.support.doomed", str(place), f"{folder}/reward.py:reward", str(fifo)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
        try:
            assert process.stdout is not None
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()
            process.wait()
            sweep(place)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return where bulk data lies."""
    made = tmp_path / "place"
    made.mkdir()
    return made


def _in(place: Path) -> list[Path]:
    return list(place.iterdir())


async def _opened(place: Path) -> None:
    async with processes.open(processes.Config(payload_dir=str(place)), Site(job_dir="/")) as backend:
        assert await backend.payloads.owners() == frozenset()


async def test_the_workers_of_a_killed_run_die_with_it(tmp_path: Path, place: Path) -> None:
    """W05: rewards too, which are processes of a process, and hang; what is left goes with the next start."""
    with (
        running(place, tmp_path) as (process, pids),
        Watched(pids["worker"] + pids["reward"]) as ours,
        Watched(pids["strays"]) as strays,
    ):
        process.kill()
        assert ours.left(GONE_S) == set()
        process.wait()  # workers see the end of a channel while it still holds the lock, and so is alive
        assert strays.left(0) == set(pids["strays"]), "no kernel ends those"
        (folder,) = _in(place)
        assert len(_in(folder / "payloads")) == 1
        await _opened(place)
        assert strays.left(GONE_S) == set()
        assert _in(place) == []


async def test_a_run_that_lives_is_left_alone(tmp_path: Path, place: Path) -> None:
    """W05: the reaper of one run must not be the end of another."""
    with (
        running(place, tmp_path) as (_, pids),
        Watched(pids["worker"] + pids["reward"] + pids["strays"]) as all_of_it,
    ):
        before = _in(place)
        await _opened(place)
        assert _in(place) == before
        assert all_of_it.left(0) == {pid for many in pids.values() for pid in many}


@pytest.mark.parametrize("signum", [signal.SIGSTOP, signal.SIGTERM])
async def test_what_stands_still_dies_with_its_run_too(tmp_path: Path, place: Path, signum: signal.Signals) -> None:
    """A stopped process hears no end of a channel; the kernel's own signal reaches it."""
    with running(place, tmp_path) as (process, pids), Watched(pids["worker"] + pids["reward"]) as ours:
        if signum == signal.SIGSTOP:
            for pid in pids["worker"]:
                os.kill(pid, signum)
            process.kill()
        else:
            process.terminate()  # a controller that does not handle it dies as if it had been killed
        assert ours.left(GONE_S) == set()
    await _opened(place)


def test_nobody_else_is_taken_for_a_leftover(place: Path) -> None:
    """A process is known by the name of a folder that no other run has, not by a number that is used again."""
    dead, lives = make_state(place), make_state(place)
    os.close(dead.lock)  # as the kernel does when its holder is killed
    sleep = ["sleep", "600"]
    marks = {"of the dead": f"{dead.folder}:0:", "of the living": f"{lives.folder}:0:", "of nobody": ""}
    started = {name: subprocess.Popen(sleep, env={MARK: mark}) for name, mark in marks.items()}  # noqa: S603
    try:
        sweep(place)
        assert started["of the dead"].wait(10) == -signal.SIGKILL
        assert started["of the living"].poll() is None
        assert started["of nobody"].poll() is None
        assert _in(place) == [lives.folder]
        remove_state(lives)
        assert started["of the living"].wait(10) == -signal.SIGKILL
        assert started["of nobody"].poll() is None
        assert _in(place) == []
    finally:
        for process in started.values():
            process.kill()
            process.wait()


def test_a_link_is_not_followed(tmp_path: Path, place: Path) -> None:
    """Anybody may put a link into a folder for temporary files."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (place / f"conductor-{os.getuid()}-link").symlink_to(precious)
    sweep(place)
    assert precious.exists()


def test_many_processes_end_at_once() -> None:
    mark = f"{os.getpid()}-many:"
    sleep = ["sleep", "600"]
    started = [subprocess.Popen(sleep, env={MARK: f"{mark}{number}"}) for number in range(20)]  # noqa: S603
    assert end_marked(mark) == []
    assert [process.wait(10) for process in started] == [-signal.SIGKILL] * 20


def test_a_process_is_known_while_its_program_is_being_started() -> None:
    """W05: the kernel shows no environment until the new program has laid it out; it was taken for nobody's."""
    much = {f"A{number}": "" for number in range(100_000)}  # to lay out: the moment becomes longer
    for _ in range(20):  # some of them are met in it
        with subprocess.Popen(["sleep", "600"], env={**much, MARK: "young:"}) as process:  # noqa: S607
            try:
                assert carries(process.pid, ("young:",), time.monotonic() + 10)
            finally:
                process.kill()
