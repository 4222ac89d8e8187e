"""What a fleet does with the pools that its engines serve: one, or a second one for those that only evaluate."""

from collections.abc import Awaitable, Callable, Collection, Container, Mapping
from typing import Protocol

from protocols.inference import EnginePort
from protocols.messages import WorkerId


class Pool(Protocol):
    """What a pool of engines lets be done to its members; see ``backends.engines.pool``."""

    def add(self, engines: Mapping[WorkerId, EnginePort]) -> None:
        """Take engines in beside the others."""
        ...

    async def drain(self, workers: Collection[WorkerId], *, within_s: float) -> None:
        """Send nothing more to some, and wait until they work on nothing."""
        ...

    def forget(self, workers: Collection[WorkerId]) -> None:
        """Let go of some."""
        ...

    def replaced(self, worker: WorkerId) -> None:
        """Take note that one is another process now."""
        ...


def drainer(*pools: Pool, within_s: float) -> Callable[[Collection[WorkerId]], Awaitable[None]]:
    """Return what lets engines finish what they work on, whichever pool they serve; each pool has so many seconds."""

    async def drain(workers: Collection[WorkerId]) -> None:
        for pool in pools:
            await pool.drain(workers, within_s=within_s)

    return drain


def either(members: Container[WorkerId], pool: Pool, other: Pool) -> Callable[[WorkerId], None]:
    """Return what tells ``pool`` of its ``members`` that are other processes now, and ``other`` of the rest."""
    return lambda member: (pool if member in members else other).replaced(member)
