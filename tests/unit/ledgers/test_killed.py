"""A process that is killed at any moment leaves every event that was acknowledged, and no half of an append."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from backends.ledgers import sqlite
from protocols.ledger import Dropped, LedgerEvent
from tests.support.ledgers import generating, site_of

ROOT = Path(__file__).parents[3]

WRITER = """
import sys
from functools import partial
from pathlib import Path

import anyio

from protocols.ledger import Dropped
from tests.support.ledgers import generating, open_sqlite

run_dir, begun = Path(sys.argv[1]), int(sys.argv[2])
count = begun


async def append(ledger):
    global count
    while True:
        number, count = count, count + 1
        await ledger.append((generating(2 * number), generating(2 * number + 1)))
        print(number, flush=True)


async def compact(ledger):
    while True:
        await anyio.sleep(0.01)
        await ledger.compact((Dropped(lease_id=f"L{count}", reason="compacted"),))
        print("compacted", flush=True)


async def main():
    async with open_sqlite(run_dir, resume=begun > 0) as ledger, anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(append, ledger)
        tasks.start_soon(compact, ledger)


anyio.run(main)
"""


def pairs_in(events: tuple[LedgerEvent, ...]) -> int:
    """Return how many pairs were ever appended; fail where one is half, or missing in between."""
    first = 0
    if events and isinstance(events[0], Dropped):
        first, events = int(events[0].lease_id[1:]), events[1:]
    assert len(events) % 2 == 0, "an append is there whole or not at all"
    assert events == tuple(generating(2 * first + index) for index in range(len(events)))
    return first + len(events) // 2


@pytest.mark.real_time
def test_what_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    """Killed between two commits, in one, and in a compaction; the next process finds the lock free."""
    rng = random.Random(3)
    there, compactions, lives = 0, 0, 0
    while lives < 6 or compactions < 2:  # how much one life does depends on the machine
        lives += 1
        assert lives < 60
        command = [sys.executable, "-c", WRITER, str(tmp_path), str(there)]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        with subprocess.Popen(  # noqa: S603 - our own code
            command, stdout=subprocess.PIPE, text=True, env=env
        ) as process:
            assert process.stdout is not None
            seen = [process.stdout.readline().strip() for _ in range(rng.randrange(1, 400))]
            process.send_signal(signal.SIGKILL)
            seen += process.stdout.read().split()
        compactions += seen.count("compacted")
        acknowledged = [int(line) for line in seen if line.isdigit()]
        record = sqlite.read(sqlite.Config(), site_of(tmp_path))
        there = pairs_in(record.events)
        assert there > max(acknowledged, default=-1)
        assert record.lost == 0
    assert compactions > 1
