"""The payload store of a cluster: objects of Ray, and one actor that knows which is whose.

Whoever puts or gets does so himself: bytes go from the store of one node to that of another, once for each node however
many of its processes read them, and never to the controller. An object ends with the process that put it. What is small
is no object, as with Ray's own arguments and results: the actor that knows whose it is holds the bytes.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import anyio.to_thread
import ray
import ray.exceptions as rx

from backends._failures import decode_failure
from backends.ray.calls import result_of
from backends.ray.failures import translated
from backends.ray.stored import (
    Array,
    Listing,
    Packed,
    Parcel,
    Part,
    Piece,
    packed,
    parcel_of,
    parted,
    same,
    size_of,
    unpacked,
)
from protocols.backend import Bulk, PayloadPort
from protocols.errors import InvariantError, WorkerLost
from protocols.messages import PayloadRef

STORE = "payload store"

_AT_ONCE = 4  # objects that are summed up and copied at the same time: one alone does not fill the memory's bandwidth
_SMALL = 100 << 10
"""Bytes of what is no object. One costs its maker, its readers and the directory more messages than bytes."""

_AT_HAND_S = 5.0  # for what this process put itself, and holds


@dataclass(frozen=True)
class Held:
    """A payload in the store.

    Attributes:
        listing: What it is made of.
        parcels: In that order, references to objects, and parcels that are small.
    """

    listing: Listing
    parcels: list[Any] = field(repr=False)


class _Stored(NamedTuple):
    """A parcel, and what holds its bytes: an object of Ray, or a copy; and whether that was made for it."""

    arrays: tuple[Array, ...]
    parcel: Parcel
    object: Any
    fresh: bool


class RayPayloads:
    """Puts, gets and releases.

    What of a mapping is as it was in the last one that this process put is not put again: it stays the object that it
    is, and nobody fetches it a second time.

    Args:
        directory: Handle of the ``PayloadDirectory``.

    Attributes:
        bytes_put, bytes_got: By this process.
    """

    def __init__(self, directory: Any) -> None:
        self._directory = directory
        self._last: dict[tuple[Array, ...], Any] = {}
        self._moving: frozenset[str] = frozenset()  # what was not in the last mapping as it was in the one before
        self.bytes_put = 0
        self.bytes_got = 0

    async def put(self, ref: PayloadRef, value: Bulk) -> None:
        """Store ``value``; see ``PayloadPort.put``. It is copied into the object store, once.

        Raises:
            Transient: The store is full.
            InvariantError: ``value`` cannot be stored.
        """
        held = await anyio.to_thread.run_sync(self._put, ref, value)
        await result_of(self._directory.keep.remote(ref, held), STORE)

    async def get(self, ref: PayloadRef) -> Bulk:
        """Return what was put; see ``PayloadPort.get``. Arrays lie in the object store: nobody writes to them."""
        found: Held | None = await result_of(self._directory.find.remote(ref), STORE)
        if found is None:
            raise not_held(ref)
        value = await fetched(found, ref)
        self.bytes_got += found.listing.size
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

    def _put(self, ref: PayloadRef, value: Bulk) -> Held:
        try:
            message, parts = parted(value, self._moving)
            if len(parts) > 1:
                with ThreadPoolExecutor(_AT_ONCE) as threads:
                    stored = list(threads.map(self._put_one, parts))
            else:  # a group, of which there are many
                stored = [*map(self._put_one, parts)]
        except TypeError as exc:
            raise InvariantError(f"{ref} cannot be stored: {exc}") from exc
        except rx.RayError as exc:
            raise translated(STORE, exc) from exc
        self.bytes_put += sum(size_of(one.parcel) for one in stored if one.fresh)
        if message is None:
            before = {array for arrays in self._last for array in arrays}
            now = {array for one in stored for array in one.arrays}
            self._moving = frozenset(array.name for array in now - before) if before else frozenset()
            self._last = {one.arrays: one.object for one in stored}
        made = Packed(message, tuple((one.arrays, one.parcel) for one in stored))
        return _held(made, [one.object for one in stored])

    def _put_one(self, part: Part) -> "_Stored":
        arrays, parcel = parcel_of(part)
        known = self._known(arrays, parcel)
        return _Stored(arrays, parcel, _object_of(parcel) if known is None else known, fresh=known is None)

    def _known(self, arrays: tuple[Array, ...], parcel: Parcel) -> Any:
        """Return the object of the last mapping that has these very bytes; None: there is none."""
        known = self._last.get(arrays)
        if known is None:
            return None
        if isinstance(known, tuple):
            return known if same(parcel, known) else None
        try:
            return known if same(parcel, ray.get(known, timeout=_AT_HAND_S)) else None
        except rx.RayError:
            return None  # it is gone, and put anew


def put_alone(value: Bulk) -> Held:
    """Put a payload that resembles none before it.

    Raises:
        RayError: The store is full, or gone.
        TypeError: It holds what is neither message nor array.
    """
    made = packed(value)
    return _held(made, [_object_of(parcel) for _, parcel in made.parcels])


def _object_of(parcel: Parcel) -> Any:
    """Put a parcel, or copy one that is small: what it views is its maker's, and may change."""
    if size_of(parcel) <= _SMALL:
        return tuple(Piece(bytes(piece.view)) for piece in parcel)
    return ray.put(parcel)


def _held(made: Packed, objects: list[Any]) -> Held:
    return Held(made.listing(_node()), objects)


def _node() -> str:
    return ray.get_runtime_context().get_node_id()


async def fetched(held: Held, ref: PayloadRef) -> Bulk:
    """Return what was put, once all of it is on this node; what is not yet comes one object after the other.

    Who reads on the node where it was put reads the very bytes; on another they are compared with their checksums.

    Raises:
        WorkerLost: Some of it is gone, or is not what was put.
    """
    try:
        found = await anyio.to_thread.run_sync(_found_here, held, abandon_on_cancel=True)  # it ends by itself
        if found is None:
            parcels = [one if isinstance(one, tuple) else await result_of(one, STORE) for one in held.parcels]
            found = await anyio.to_thread.run_sync(lambda: unpacked(held.listing, parcels, check=True))
    except ValueError as exc:
        raise WorkerLost(worker=STORE, cause=f"{ref.key!r} of {ref.owner!r}: {exc}") from exc
    return found


def _found_here(held: Held) -> Bulk | None:
    """Return what was put if it was put on this node and is there: all at once, for then nothing has to come."""
    if held.listing.node != _node():
        return None
    try:
        objects = [one for one in held.parcels if not isinstance(one, tuple)]
        there = dict(zip(objects, ray.get(objects, timeout=_AT_HAND_S), strict=True))
        return unpacked(held.listing, [there.get(one, one) for one in held.parcels], check=False)
    except rx.GetTimeoutError:  # it was spilled, and takes its time
        return None
    except rx.RayError as exc:
        raise translated(STORE, exc) from exc


def not_held(ref: PayloadRef) -> WorkerLost:
    """Return the error of a payload that is not there."""
    return WorkerLost(worker=STORE, cause=f"it holds no {ref.key!r} of {ref.owner!r}")


def _raise(failure: bytes) -> None:
    if failure:
        raise decode_failure(failure)


_: type[PayloadPort] = RayPayloads
