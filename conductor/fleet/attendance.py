"""Which workers of a role can be called."""

from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager

from protocols.aio import Doorbell
from protocols.messages import WorkerId


class Attendance:
    """Who is away: found lost, and not yet known to be there again.

    Attributes:
        told: Each is told of a worker that has just been found lost.
    """

    def __init__(self) -> None:
        self.told: list[Callable[[WorkerId], None]] = []
        self._away: set[WorkerId] = set()
        self._changed = Doorbell()
        self._tended = False

    @property
    def away(self) -> frozenset[WorkerId]:
        """Whoever is away now."""
        return frozenset(self._away)

    @contextmanager
    def tended(self) -> Generator[None]:
        """Bring back whoever is away while the block runs; who waits outside of it waits in vain, and does not."""
        self._tended = True
        try:
            yield
        finally:
            self._tended = False
            self._changed.ring()

    def leave(self, worker: WorkerId) -> None:
        """Take note that a worker is away."""
        if worker in self._away:
            return
        self._away.add(worker)
        for tell in self.told:
            tell(worker)

    def come_back(self, worker: WorkerId) -> None:
        """Take note that a worker is there again."""
        self._away.discard(worker)
        self._changed.ring()

    async def wait_for(self, workers: Collection[WorkerId]) -> None:
        """Wait until one of some workers is there, or nobody brings them back any more."""
        while self._tended and self._away.issuperset(workers):
            await self._changed.wait()
