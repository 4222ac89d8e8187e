"""The record of ownership in memory: it ends with the process."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from anyio.lowlevel import checkpoint

from protocols.adapters import Host
from protocols.errors import Problem
from protocols.ledger import LedgerEvent, LedgerPort
from protocols.messages import Message
from protocols.sections import Site


class Config(Message, frozen=True, kw_only=True):
    """``[ledger] kind = "memory"`` has no options."""


class MemoryLedger:
    """Keeps every event in a list, for as long as the run lasts."""

    def __init__(self) -> None:
        self._events: list[LedgerEvent] = []

    async def append(self, events: tuple[LedgerEvent, ...]) -> None:
        """Write ``events``; see ``LedgerPort.append``."""
        self._events.extend(events)
        await checkpoint()

    async def replay(self, after: int = 0) -> tuple[LedgerEvent, ...]:
        """Return all events behind the first ``after``: they are in memory already."""
        await checkpoint()
        return tuple(self._events[after:])

    async def lost(self) -> int:
        """Return 0: memory is lost as a whole."""
        await checkpoint()
        return 0

    async def compact(self, events: tuple[LedgerEvent, ...]) -> None:
        """Put ``events`` in the place of all others; see ``LedgerPort.compact``."""
        self._events = list(events)
        await checkpoint()


def check(cfg: Config, site: Site) -> Sequence[Problem]:
    """Return nothing: memory is always there."""
    del cfg, site
    return ()


@asynccontextmanager
async def open(cfg: Config, host: Host) -> AsyncGenerator[MemoryLedger]:  # noqa: A001 - the adapters' common name
    """Open an empty record."""
    del cfg, host
    await checkpoint()
    yield MemoryLedger()


_: type[LedgerPort] = MemoryLedger
