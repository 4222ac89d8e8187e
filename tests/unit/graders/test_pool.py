"""Rewards in worker processes: what they survive, and that nothing of them is left."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from backends.graders._pool import RewardPool, open_pool
from backends.graders._reward import Task
from protocols.errors import UserError, WorkerLost
from protocols.grading import Grade, GradeFault
from tests.support.texts import exactly

pytestmark = pytest.mark.real_time

REWARD = """
import ctypes, os, signal, subprocess, sys, time

def reward(completion, folder=None):
    if completion == "exit": os._exit(3)
    if completion == "segfault": os.kill(os.getpid(), signal.SIGSEGV)
    if completion == "pid": return os.getpid()
    if completion == "read": return len(sys.stdin.read())
    if completion == "corrupt":
        print("not a frame", flush=True)
        os.write(1, b"not a frame")
        sys.__stdout__.write("not a frame")
        return 1.0
    if completion == "alarm":
        signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(TimeoutError("too slow")))
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        try:
            while True: time.sleep(0.001)
        except TimeoutError:
            return 0.5
    if completion == "hang":
        while True: pass
    if completion == "child":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        open(f"{folder}/child", "w").write(str(child.pid))
        while True: pass
    if completion == "meet":
        open(f"{folder}/{os.getpid()}", "w").close()
        while len(os.listdir(folder)) < 2: time.sleep(0.001)
    return 1.0
"""


@pytest.fixture
def job_dir(tmp_path: Path) -> str:
    (tmp_path / "reward.py").write_text(REWARD)
    return str(tmp_path)


def task(*completions: str, folder: Path | None = None) -> Task:
    return Task(prompt="p", fields={"folder": str(folder)}, completions=list(completions))


async def kinds(pool: RewardPool, *completions: str) -> list[object]:
    grades = await pool.grade(task(*completions))
    return [one.reward if isinstance(one, Grade) else one.kind for one in grades]


def is_gone(pid: int, within_s: float = 0) -> bool:
    """Return whether a process, anyone's child, ends within ``within_s`` seconds."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([process], [], [], within_s)[0])
    finally:
        os.close(process)


async def test_a_crash_costs_its_own_sample(job_dir: str) -> None:
    """I58: a worker that dies is a fault of the guilty sample, not a 0 for all of them."""
    async with open_pool("reward.py:reward", job_dir, size=1, deadline_s=10) as pool:
        assert await kinds(pool, "a", "exit", "b", "segfault", "c") == [1.0, "crashed", 1.0, "crashed", 1.0]
        exited, killed = await pool.grade(task("exit", "segfault"))
        assert isinstance(exited, GradeFault)
        assert isinstance(killed, GradeFault)
        assert "exited with 3" in exited.detail
        assert "SIGSEGV" in killed.detail


async def test_a_process_is_used_again(job_dir: str) -> None:
    async with open_pool("reward.py:reward", job_dir, size=1, deadline_s=10) as pool:
        pids = {reward for _ in range(3) for reward in await kinds(pool, "pid", "pid")}
        assert pids == pool.pids


async def test_no_process_is_left(job_dir: str, tmp_path: Path) -> None:
    """I75: verified by the process list, also where user code hangs and has started processes of its own."""
    async with (
        anyio.create_task_group() as tasks,
        open_pool("reward.py:reward", job_dir, size=2, deadline_s=60) as pool,
    ):
        os.mkfifo(tmp_path / "child")
        tasks.start_soon(pool.grade, task("child", folder=tmp_path))
        child = int(await anyio.to_thread.run_sync((tmp_path / "child").read_text))
        await pool.grade(task("a"))
        pids = pool.pids
        assert len(pids) == 2
        assert not any(is_gone(pid) for pid in (*pids, child))
        tasks.cancel_scope.cancel()
    assert all(is_gone(pid) for pid in pids)
    assert pool.pids == frozenset()
    assert is_gone(child, within_s=10)


async def test_processes_work_at_the_same_time(job_dir: str, tmp_path: Path) -> None:
    """I59: serial rewards freeze training. Each of the two returns only when both run."""
    folder = tmp_path / "meeting"
    folder.mkdir()
    async with (
        open_pool("reward.py:reward", job_dir, size=2, deadline_s=20) as pool,
        anyio.create_task_group() as tasks,
    ):
        for _ in range(2):
            tasks.start_soon(pool.grade, task("meet", folder=folder))
    assert len(list(folder.iterdir())) == 2


async def test_prints_and_reads_of_user_code_reach_no_frame(job_dir: str, capfd: pytest.CaptureFixture[str]) -> None:
    async with open_pool("reward.py:reward", job_dir, size=1, deadline_s=10) as pool:
        assert await kinds(pool, "corrupt", "read", "a") == [1.0, 0.0, 1.0]
    shown = capfd.readouterr()
    assert shown.out == "", "stdout is the command's own: its last line may be JSON"
    assert "not a frame" in shown.err


async def test_signals_work_as_in_a_main_thread(job_dir: str) -> None:
    """I58: math-verify uses signal.alarm, raised off the main thread, and every reward became 0."""
    async with open_pool("reward.py:reward", job_dir, size=1, deadline_s=10) as pool:
        assert await kinds(pool, "alarm", "a") == [0.5, 1.0]


async def test_a_process_that_died_while_idle_harms_nobody(job_dir: str) -> None:
    async with open_pool("reward.py:reward", job_dir, size=1, deadline_s=10) as pool:
        (pid,) = pool.pids
        os.kill(pid, signal.SIGKILL)
        await pool._started[pid]._process.wait()
        assert await kinds(pool, "a", "b") == [1.0, 1.0]


@pytest.mark.parametrize(
    ("code", "error", "why"),
    [
        (
            "raise RuntimeError('half of it')",
            UserError,
            exactly(
                "reward.function cannot be loaded in a worker process: it cannot be imported: "
                "RuntimeError: half of it (...); correct it there: a bare interpreter imports it"
            ),
        ),
        ("import os; os._exit(5)", WorkerLost, "exited with 5"),
    ],
)
async def test_a_function_that_does_not_load_is_told_when_the_pool_opens(
    tmp_path: Path, code: str, error: type[Exception], why: str
) -> None:
    (tmp_path / "reward.py").write_text(code)
    with pytest.raises(error, match=why):
        async with open_pool("reward.py:reward", str(tmp_path), size=1, deadline_s=10):
            pass


SCRIPT = """
import sys, anyio
from backends.graders._pool import open_pool
from backends.graders._reward import Task

print("the script runs", flush=True)

async def main():
    async with open_pool("reward.py:reward", sys.argv[1], size=1, deadline_s=600) as pool:
        (pid,) = pool.pids
        print(pid, flush=True)
        print(len(await pool.grade(Task(prompt="p", fields={}, completions=sys.argv[2:]))), flush=True)

anyio.run(main)  # no `if __name__ == "__main__"`: a user's script has none
"""


def run_script(folder: Path, *completions: str) -> "subprocess.Popen[str]":
    (folder / "script.py").write_text(SCRIPT)
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    return subprocess.Popen(  # noqa: S603 - the test's own script
        [sys.executable, str(folder / "script.py"), str(folder), *completions],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )


def test_the_callers_script_is_not_run_again(job_dir: str) -> None:
    """multiprocessing runs the main script in each worker: an unguarded one starts a second run there."""
    with run_script(Path(job_dir), "a") as process:
        out, _ = process.communicate(timeout=30)
    lines = out.split("\n")
    assert [lines[0], lines[2]] == ["the script runs", "1"]
    assert out.count("the script runs") == 1
    assert process.returncode == 0


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_a_killed_run_takes_its_processes_along(job_dir: str) -> None:
    """I75: the driver was killed, and what it had started lived on. Here the reward even hangs."""
    with run_script(Path(job_dir), "hang") as process:
        assert process.stdout is not None
        process.stdout.readline()
        pid = int(process.stdout.readline())
        assert not is_gone(pid)
        process.kill()
    assert is_gone(pid, within_s=10)
