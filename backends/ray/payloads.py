"""The payload store of a cluster: objects of Ray, and one actor that knows which is whose.

Whoever puts or gets does so himself: bytes go from the store of one node to that of another, once for each node however
many of its processes read them, and never to the controller. An object ends with the process that put it.
"""

from typing import Any

import anyio.to_thread
import ray
import ray.exceptions as rx

from backends._failures import decode_failure
from backends.ray.calls import result_of
from backends.ray.failures import translated
from backends.ray.stored import Stored
from protocols.backend import Bulk, PayloadPort
from protocols.errors import InvariantError, WorkerLost
from protocols.messages import PayloadRef

STORE = "payload store"


class RayPayloads:
    """Puts, gets and releases.

    Args:
        directory: Handle of the ``PayloadDirectory``.

    Attributes:
        bytes_put, bytes_got: By this process.
    """

    def __init__(self, directory: Any) -> None:
        self._directory = directory
        self.bytes_put = 0
        self.bytes_got = 0

    async def put(self, ref: PayloadRef, value: Bulk) -> None:
        """Store ``value``; see ``PayloadPort.put``. It is copied into the object store, once.

        Raises:
            Transient: The store is full.
            InvariantError: ``value`` cannot be stored.
        """
        stored, held = await anyio.to_thread.run_sync(self._put, ref, value)
        self.bytes_put += stored.size
        await result_of(self._directory.keep.remote(ref, [held]), STORE)

    async def get(self, ref: PayloadRef) -> Bulk:
        """Return what was put; see ``PayloadPort.get``. Arrays lie in the object store: nobody writes to them."""
        found: list[Any] = await result_of(self._directory.find.remote(ref), STORE)
        if not found:
            raise not_held(ref)
        value, size = await fetched(found[0], ref)
        self.bytes_got += size
        return value

    async def release(self, owner: str) -> None:
        """Forget the payloads of every owner that starts with ``owner``; see ``PayloadPort.release``."""
        await result_of(self._directory.release.remote(owner), STORE)

    async def owners(self) -> frozenset[str]:
        """Return the owners that hold something."""
        return await result_of(self._directory.owners.remote(), STORE)

    async def spool(self, ref: PayloadRef, path: str) -> None:
        """Have a group's payload written to a file where the directory is; see ``PayloadPort.spool``."""
        _raise(await result_of(self._directory.spool.remote(ref, path), STORE))

    async def unspool(self, ref: PayloadRef, path: str) -> None:
        """Have stored what such a file holds; see ``PayloadPort.unspool``."""
        _raise(await result_of(self._directory.unspool.remote(ref, path), STORE))

    @staticmethod
    def _put(ref: PayloadRef, value: Bulk) -> tuple[Stored, Any]:
        try:
            stored = Stored.of(value)
        except TypeError as exc:
            raise InvariantError(f"{ref} cannot be stored: {exc}") from exc
        try:
            return stored, ray.put(stored)
        except rx.RayError as exc:
            raise translated(STORE, exc) from exc


async def fetched(held: Any, ref: PayloadRef) -> tuple[Bulk, int]:
    """Return what an object holds, once it is on this node, and how many bytes that were.

    Raises:
        WorkerLost: It is gone, or is not what was put.
    """
    stored: Stored = await result_of(held, STORE)
    try:
        return await anyio.to_thread.run_sync(stored.value), stored.size
    except ValueError as exc:
        raise WorkerLost(worker=STORE, cause=f"{ref.key!r} of {ref.owner!r}: {exc}") from exc


def not_held(ref: PayloadRef) -> WorkerLost:
    """Return the error of a payload that is not there."""
    return WorkerLost(worker=STORE, cause=f"it holds no {ref.key!r} of {ref.owner!r}")


def _raise(failure: bytes) -> None:
    if failure:
        raise decode_failure(failure)


_: type[PayloadPort] = RayPayloads
