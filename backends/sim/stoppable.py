"""Work that an abort by prefix ends, and that tells when it has ended."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import anyio
from anyio.lowlevel import checkpoint

from protocols.errors import Aborted, InvariantError

T = TypeVar("T")


class _Work:
    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.ended = anyio.Event()


class Stoppable(Generic[T]):
    """Runs work under the ids of its requests, and ends it by prefix of any of them.

    Attributes:
        aborted: Prefixes that were aborted, in order; work under them is refused.
    """

    def __init__(self) -> None:
        self.aborted: list[str] = []
        self._live: dict[str, _Work] = {}

    @property
    def live(self) -> frozenset[str]:
        """The ids that run."""
        return frozenset(self._live)

    async def run(self, ids: Sequence[str], work: Callable[[], Awaitable[T]]) -> T:
        """Run ``work``, which has one fate for all of its ids.

        Raises:
            Aborted: An abort ended it, or had come before it.
            InvariantError: One of the ids runs already.
        """
        self._refuse_aborted(ids)
        if twice := self.live.intersection(ids):
            raise InvariantError(f"these run already: {', '.join(sorted(twice))}")
        mine = _Work()
        self._live |= dict.fromkeys(ids, mine)
        try:
            with mine.scope:
                return await work()
            self._refuse_aborted(ids)
            raise InvariantError("stopped without an abort")
        finally:
            for one in ids:
                self._live.pop(one, None)
            mine.ended.set()

    def finished(self, one: str) -> None:
        """Take one id out of the live ones while the rest of its work goes on."""
        self._live.pop(one, None)

    async def abort(self, prefix: str) -> frozenset[str]:
        """End all work with an id under ``prefix``; returns the ids that lived, when they do not any more."""
        if prefix not in self.aborted:
            self.aborted.append(prefix)
        hit = {id(work): work for one, work in self._live.items() if one.startswith(prefix)}
        stopped = frozenset(one for one, work in self._live.items() if id(work) in hit)
        for work in hit.values():
            work.scope.cancel()
        await checkpoint()
        for work in hit.values():
            await work.ended.wait()
        return stopped

    def _refuse_aborted(self, ids: Sequence[str]) -> None:
        for prefix in self.aborted:
            if any(one.startswith(prefix) for one in ids):
                raise Aborted(prefix=prefix)
