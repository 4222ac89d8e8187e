"""Bounded queues between roles: what producers wait at while the consumers are behind."""

from collections.abc import Callable

import anyio
from anyio.lowlevel import checkpoint

from protocols.errors import QueueClosed, WorkerLost
from protocols.messages import WorkerId


class RoleQueue:
    """One queue, which the workers of one role take from.

    Args:
        name: Of the job's.
        size: Items that it holds.
        absent: Tells which of its consumers is away, where all of them are.
    """

    def __init__(self, name: str, size: int, absent: Callable[[], WorkerId | None]) -> None:
        self._name = name
        self._absent = absent
        self._in, self._out = anyio.create_memory_object_stream[bytes](size)
        self._putting: set[anyio.CancelScope] = set()

    async def put(self, item: bytes) -> None:
        """Put an item; see ``RolesPort.put``."""
        self._check()
        with anyio.CancelScope() as scope:
            self._putting.add(scope)
            try:
                await self._in.send(item)
            except (anyio.ClosedResourceError, anyio.BrokenResourceError) as exc:
                raise QueueClosed(queue=self._name) from exc
            finally:
                self._putting.discard(scope)
        if scope.cancelled_caught:
            self._check()
            raise QueueClosed(queue=self._name)

    async def take(self) -> bytes | None:
        """Take the oldest item; see ``RolesPort.take``."""
        try:
            return await self._out.receive()
        except anyio.EndOfStream:
            return None

    async def close(self) -> None:
        """Let no more come; those that wait to put fail."""
        await checkpoint()
        self._in.close()
        self._release()

    def lost(self) -> None:
        """Release those that wait to put, if nobody is there any more who could take."""
        if self._absent() is not None:
            self._release()

    def discard(self) -> None:
        """Forget what is in it."""
        self._in.close()
        self._out.close()

    def _check(self) -> None:
        if (worker := self._absent()) is not None:
            raise WorkerLost(worker=worker, cause=f"nobody takes from the queue {self._name}")

    def _release(self) -> None:
        for scope in self._putting:
            scope.cancel()
