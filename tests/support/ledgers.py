"""SQLite ledgers for tests: opened in a folder, filled up, left behind as by a process that was killed."""

import os
import shutil
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from backends.ledgers import sqlite
from backends.sim.payloads import ScriptedPayloads
from protocols.adapters import Host
from protocols.ledger import Aborting, Generating, LedgerEvent, LedgerPort
from protocols.messages import LeaseId
from protocols.sections import Site

_NOBODY = 65534


def generating(lease: int) -> LedgerEvent:
    """Return a small event that is like no other."""
    return Generating(lease_id=LeaseId(f"L{lease}"), attempt=0)


def bulky(lease: int, size: int) -> LedgerEvent:
    """Return an event of about ``size`` bytes."""
    return Aborting(lease_id=LeaseId(f"L{lease}"), reason="x" * size)


def site_of(run_dir: Path, *, resume: bool = False) -> Site:
    """Return the facts about a run in a folder."""
    return Site(job_dir="/", run_dir=str(run_dir), resume=resume)


async def replayed(ledger: LedgerPort) -> tuple[LedgerEvent, ...]:
    """Return all events of a ledger, read page by page."""
    events: tuple[LedgerEvent, ...] = ()
    while page := await ledger.replay(len(events)):
        events += page
    return events


@asynccontextmanager
async def open_sqlite(run_dir: Path, *, resume: bool = False, **options: Any) -> AsyncGenerator[sqlite.SqliteLedger]:
    """Open the ledger of a run in a folder."""
    host = Host(site=site_of(run_dir, resume=resume), payloads=ScriptedPayloads())
    async with sqlite.open(sqlite.Config(**options), host) as ledger:
        yield ledger


@asynccontextmanager
async def open_on_a_full_disk(run_dir: Path) -> AsyncGenerator[sqlite.SqliteLedger]:
    """Open a ledger whose file can grow no further; SQLite reports that as it reports a full disk."""
    async with open_sqlite(run_dir) as ledger:
        await ledger._thread.ask(lambda store: store._db.execute("PRAGMA max_page_count = 1").fetchall())
        yield ledger


def leave_as_killed(run_dir: Path, to: Path) -> Path:
    """Copy a ledger that is open: what its process would leave if it were killed now."""
    to.mkdir()
    for name in ("ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite.mark"):
        shutil.copyfile(run_dir / name, to / name)
    return to


@contextmanager
def unprivileged() -> Generator[None]:
    """Be nobody for the block, where the tests run as root, whom no folder refuses."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
