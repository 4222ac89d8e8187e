"""The record of ownership in a SQLite file: it survives the end of the process, however that comes about."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import anyio
import msgspec
import structlog
from anyio.lowlevel import checkpoint

from backends.ledgers._sqlite.reading import read_record
from backends.ledgers._sqlite.store import open_store
from backends.ledgers._sqlite.thread import LedgerThread
from protocols.adapters import Host
from protocols.errors import Problem
from protocols.ledger import LedgerEvent, LedgerPort, Record
from protocols.messages import Message
from protocols.sections import Site

log = structlog.get_logger(__name__)

CLOSE_DEADLINE_S = 30.0
"""For what was appended to be written, and the log to be brought into the file."""


class Config(Message, frozen=True, kw_only=True):
    """``[ledger] kind = "sqlite"``.

    Attributes:
        path: The file; a relative one starts from the run's folder. Not on a network file system, which
            SQLite's write-ahead log does not support.
        synchronous: ``normal``: an append survives the end of the process. ``full``: the end of the machine
            as well, for a wait for the disk at each commit.
    """

    path: Annotated[str, msgspec.Meta(min_length=1)] = "ledger.sqlite"
    synchronous: Literal["normal", "full"] = "normal"


class SqliteLedger:
    """Keeps events in a file, which a thread of its own writes."""

    def __init__(self, thread: LedgerThread, *, lost: int) -> None:
        self._thread = thread
        self._lost = lost

    async def append(self, events: tuple[LedgerEvent, ...]) -> None:
        """Write ``events``; see ``LedgerPort.append``. Appends that wait at the same time share a commit."""
        await self._thread.append([msgspec.msgpack.encode(event) for event in events])

    async def replay(self, after: int) -> tuple[LedgerEvent, ...]:
        """Return events behind the first ``after``; see ``LedgerPort.replay``."""
        return await self._thread.ask(lambda store: store.replay(after))

    async def lost(self) -> int:
        """Return how many events were lost; see ``LedgerPort.lost``."""
        await checkpoint()
        return self._lost

    async def compact(self, events: tuple[LedgerEvent, ...]) -> None:
        """Put ``events`` in the place of all others; see ``LedgerPort.compact``."""
        await self._thread.ask(lambda store: store.compact([msgspec.msgpack.encode(event) for event in events]))


def check(cfg: Config, site: Site) -> Sequence[Problem]:
    """Return a problem where there is no folder for the file."""
    if site.run_dir is not None or Path(cfg.path).is_absolute():
        return ()
    why, mend = "its file lies in the run's folder, and this run has none", "give a run_dir, or take kind = 'memory'"
    return (Problem(field="ledger.kind", value="'sqlite'", why=why, mend=mend),)


@asynccontextmanager
async def open(cfg: Config, host: Host) -> AsyncGenerator[SqliteLedger]:  # noqa: A001 - the adapters' common name
    """Open the record of a new run, or with ``site.resume`` the one that is there.

    What was appended is written when the block ends.

    Raises:
        UserError: Another controller holds it, it cannot be written to, or ``site.resume`` does not fit what is there.
        CorruptLedger: It is damaged.
        PortFailed: The disk is full or failing.
    """
    path = _path(cfg, host.site)
    thread = LedgerThread(partial(open_store, path, synchronous=cfg.synchronous, resume=host.site.resume))
    thread.start()
    try:
        lost = await thread.ask(lambda store: store.lost)
        if lost:
            log.warning("ledger.events_lost", path=str(path), events=lost)
        yield SqliteLedger(thread, lost=lost)
    finally:
        with anyio.move_on_after(CLOSE_DEADLINE_S, shield=True) as scope:
            await thread.close()
        if scope.cancelled_caught:
            log.error("ledger.close_timed_out", path=str(path), deadline_s=CLOSE_DEADLINE_S)


def read(cfg: Config, site: Site) -> Record:
    """Read the record without a controller, also while one writes it or where nothing can be written.

    Raises:
        CorruptLedger: An event is not what was written; it is named by its number.
        UserError: There is no record, or it cannot be read, or it is of a newer version.
    """
    return read_record(_path(cfg, site))


def _path(cfg: Config, site: Site) -> Path:
    return Path(site.run_dir or site.job_dir) / cfg.path


_: type[LedgerPort] = SqliteLedger
