"""What a worker writes: all of it is kept, and its warnings stand in the log of the run as well, up to a number."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from structlog.testing import capture_logs

from backends._log_lines import warning_in
from backends.processes.output import Output
from protocols.messages import WorkerId

pytestmark = pytest.mark.real_time  # descriptors

WORKER = """
import structlog
from backends._log_lines import write_lines
log = structlog.get_logger("adapter")
write_lines()
log.info("engine.warm", seconds=1.0)
log.warning("engine.behind", version=3, path=object)
print('{"timestamp":"it is no line of ours')
print("plain")
try:
    1 / 0
except ZeroDivisionError:
    log.exception("engine.failed")
"""


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reads, writes = os.pipe()
    yield reads, writes
    os.close(reads)


async def test_warnings_and_errors_are_logged_with_the_worker_s_name(pipe: tuple[int, int]) -> None:
    reads, writes = pipe
    kept: list[str] = []
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    subprocess.run([sys.executable, "-c", WORKER], stdout=writes, stderr=writes, env=environment, check=True)  # noqa: ASYNC221, S603
    os.close(writes)
    with capture_logs() as logs:
        await Output(reads, WorkerId("rollout/0"), kept.append).pump()
    behind, failed = logs
    assert behind == {
        "event": "engine.behind",
        "log_level": "warning",
        "worker": "rollout/0",
        "version": 3,
        "path": "<class 'object'>",
    }
    assert (failed["event"], failed["log_level"], failed["worker"]) == ("engine.failed", "error", "rollout/0")
    assert failed["exception"].endswith("ZeroDivisionError: division by zero")
    lines = "".join(kept).splitlines()
    assert len(lines) == 5
    assert all(line.startswith("rollout/0 | ") for line in lines)


async def test_a_long_traceback_is_one_line_whatever_pieces_it_comes_in(pipe: tuple[int, int]) -> None:
    """A pipe gives what is in it, and a traceback through a large library has 20 KiB."""
    reads, writes = pipe
    said = "x" * 20_000
    line = b'{"timestamp":"2026-01-01T00:00:00Z","level":"error","event":"engine.failed","exception":"%s"}\n'
    whole = line % said.encode()
    with capture_logs() as logs:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(Output(reads, WorkerId("rollout/0"), lambda _: None).pump)
            for at in range(0, len(whole), 9_000):
                await anyio.wait_writable(writes)
                os.write(writes, whole[at : at + 9_000])
                await anyio.wait_all_tasks_blocked()
            os.close(writes)
    assert [entry["exception"] for entry in logs] == [said]


async def test_a_worker_that_warns_for_ever_fills_no_disk(pipe: tuple[int, int]) -> None:
    reads, writes = pipe
    line = b'{"timestamp":"2026-01-01T00:00:00Z","level":"warning","event":"engine.slow"}\n'

    def write() -> None:
        for _ in range(3_000):
            os.write(writes, line)
        os.close(writes)

    with capture_logs() as logs:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, write)
            await Output(reads, WorkerId("rollout/0"), lambda _: None).pump()
    assert len(logs) == 1_001
    assert logs[-1] == {
        "event": "worker.warnings_left_out",
        "log_level": "warning",
        "worker": "rollout/0",
        "after": 1_000,
    }


@pytest.mark.parametrize(
    "line",
    [
        '{"timestamp":"x"}',
        '{"timestamp":"x","level":"loud","event":"x"}',
        '{"timestamp":"x","level":[],"event":"x"}',
        "[]",
        "",
    ],
)
def test_other_text_is_no_warning(line: str) -> None:
    assert warning_in(line) is None
