"""The payload store of a cluster: objects of Ray, and one actor that knows which is whose.

Whoever puts or gets does so himself: bytes go from the store of one node to that of another, once for each node however
many of its processes read them, and never to the controller. An object ends with the process that put it. What is small
is no object, as with Ray's own arguments and results: the actor that knows whose it is holds the bytes.
"""

import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import anyio.to_thread
import ray
import ray.exceptions as rx

from backends._failures import decode_failure
from backends._tensors import same_bytes
from backends.ray.calls import result_of
from backends.ray.failures import translated
from backends.ray.stored import (
    Array,
    Listing,
    Parcel,
    Part,
    Piece,
    Sums,
    parcel_of,
    parted,
    size_of,
    sums_in,
    unpacked,
)
from backends.ray.together import Together
from protocols.backend import Bulk, PayloadPort
from protocols.errors import InvariantError, WorkerLost
from protocols.messages import PayloadRef

STORE = "payload store"

_AT_ONCE = 4  # objects that are compared and copied at the same time: one alone does not fill the memory's bandwidth
_SMALL = 100 << 10
"""Bytes of what is no object. One costs its maker, its readers and the directory more messages than bytes."""

_AT_HAND_S = 5.0  # for what this process put itself, and holds


@dataclass(frozen=True)
class Held:
    """A payload in the store.

    Attributes:
        listing: What it is made of.
        parcels: In that order, references to objects, and parcels that are small.
        sums: In that order, their checksums; None: ``maker`` is asked, once somebody on another node reads it.
        maker: Ray's id of the actor that put it, or empty where that was none.
    """

    listing: Listing
    parcels: list[Any] = field(repr=False)
    sums: tuple[Sums | None, ...]
    maker: str = ""


class _Stored(NamedTuple):
    """A parcel that is stored.

    Attributes:
        arrays: What is in it.
        size: Bytes.
        object: What holds them: an object of Ray, or a copy.
        fresh: Whether that was made for it.
        moved: Names of those whose bytes are not as they were in the last mapping.
    """

    arrays: tuple[Array, ...]
    size: int
    object: Any
    fresh: bool
    moved: tuple[str, ...]


class RayPayloads:
    """Puts, gets and releases.

    What of a mapping is as it was in the last one that this process put is not put again: it stays the object that it
    is, and nobody fetches it a second time.

    Args:
        directory: Handle of the ``PayloadDirectory``.
        answers_sums: Whether this process is an actor with the method ``sums``.

    Attributes:
        bytes_put, bytes_got: By this process.
    """

    def __init__(self, directory: Any, *, answers_sums: bool = False) -> None:
        self._directory = directory
        self._keep: Together[tuple[PayloadRef, Held], None] = Together(directory.keep.remote, STORE)
        self._find: Together[PayloadRef, Held | None] = Together(directory.find.remote, STORE)
        self._release: Together[str, None] = Together(directory.release.remote, STORE)
        self._answers_sums = answers_sums
        self._maker = ""  # once the directory knows it
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
        if self._answers_sums and not self._maker:
            await self._introduce()
        held = await anyio.to_thread.run_sync(self._put, ref, value)
        await self._keep.ask((ref, held))

    async def get(self, ref: PayloadRef) -> Bulk:
        """Return what was put; see ``PayloadPort.get``. Arrays lie in the object store: nobody writes to them."""
        found = await self._find.ask(ref)
        if found is None:
            raise not_held(ref)
        value = await fetched(found, ref, lambda: result_of(self._directory.sums.remote(ref), STORE))
        self.bytes_got += found.listing.size
        return value

    async def release(self, owner: str) -> None:
        """Forget the payloads of every owner that starts with ``owner``; see ``PayloadPort.release``."""
        await self._release.ask(owner)

    async def owners(self) -> frozenset[str]:
        """Return the owners that hold something."""
        return await result_of(self._directory.owners.remote(), STORE)

    async def spool(self, ref: PayloadRef, path: str) -> None:
        """Have a group's payload written to a file where the directory is; see ``PayloadPort.spool``."""
        _raise(await result_of(self._directory.spool.remote(ref, path), STORE))

    async def unspool(self, ref: PayloadRef, path: str) -> None:
        """Have stored what such a file holds; see ``PayloadPort.unspool``."""
        _raise(await result_of(self._directory.unspool.remote(ref, path), STORE))

    async def _introduce(self) -> None:
        own = ray.get_runtime_context()
        maker = own.get_actor_id() or ""
        await result_of(self._directory.meet.remote(maker, own.current_actor), STORE)
        self._maker = maker

    def _put(self, ref: PayloadRef, value: Bulk) -> Held:
        try:
            message, parts = parted(value, self._moving)
            before = self._before() if message is None else {}
            if len(parts) > 1:
                with ThreadPoolExecutor(_AT_ONCE) as threads:
                    stored = list(threads.map(lambda part: self._put_one(part, before), parts))
            else:  # a group, of which there are many
                stored = [self._put_one(part, before) for part in parts]
        except TypeError as exc:
            raise InvariantError(f"{ref} cannot be stored: {exc}") from exc
        except rx.RayError as exc:
            raise translated(STORE, exc) from exc
        self.bytes_put += sum(one.size for one in stored if one.fresh)
        if message is None:
            moved = itertools.chain.from_iterable(one.moved for one in stored)
            self._moving = frozenset(moved if before else ())
            self._last = {one.arrays: one.object for one in stored}
        return _held(message, stored, self._maker)

    def _put_one(self, part: Part, before: Mapping[str, tuple[Array, Piece]]) -> _Stored:
        arrays, parcel = parcel_of(part)
        pairs = zip(arrays, parcel, strict=True)
        moved = tuple(array.name for array, piece in pairs if not _as_before(array, piece, before))
        known = None if moved else self._last.get(arrays)
        stored = _object_of(parcel) if known is None else known
        return _Stored(arrays, size_of(parcel), stored, fresh=known is None, moved=moved)

    def _before(self) -> dict[str, tuple[Array, Piece]]:
        """Return the last mapping's arrays and bytes; nothing where they are gone."""
        objects = [one for one in self._last.values() if _is_object(one)]
        try:
            there = dict(zip(objects, ray.get(objects, timeout=_AT_HAND_S), strict=True))
        except rx.RayError:
            return {}
        return {
            array.name: (array, piece)
            for arrays, one in self._last.items()
            for array, piece in zip(arrays, there[one] if _is_object(one) else one, strict=True)
        }


def _as_before(array: Array, piece: Piece, before: Mapping[str, tuple[Array, Piece]]) -> bool:
    was, bytes_before = before.get(array.name, (None, piece))
    return was == array and same_bytes(piece.view, bytes_before.view)


def put_alone(value: Bulk) -> Held:
    """Put a payload that resembles none before it, and sum it up.

    Raises:
        RayError: The store is full, or gone.
        TypeError: It holds what is neither message nor array.
    """
    message, parts = parted(value)
    made = [parcel_of(part) for part in parts]
    stored = [_Stored(arrays, size_of(one), _object_of(one), fresh=True, moved=()) for arrays, one in made]
    return _held(message, stored)


def _object_of(parcel: Parcel) -> Any:
    """Put a parcel, or copy one that is small: what it views is its maker's, and may change."""
    if size_of(parcel) <= _SMALL:
        return tuple(Piece(bytes(piece.view)) for piece in parcel)
    return ray.put(parcel)


def _held(message: str | None, stored: Sequence[_Stored], maker: str = "") -> Held:
    """Say what a payload is. The sums of arrays are left to ``maker``: those of a group take less than a question."""
    objects = [one.object for one in stored]
    listing = Listing(message, _node(), tuple(one.arrays for one in stored), sum(one.size for one in stored))
    later = maker and message is None
    return Held(listing, objects, tuple(None if later and _is_object(one) else sums_of(one) for one in objects), maker)


def _is_object(stored: Any) -> bool:
    return not isinstance(stored, tuple)


def sums_of(stored: Any) -> Sums:
    """Return the checksums of a parcel, from the store of this node where that is an object.

    Raises:
        RayError: It is gone.
    """
    return sums_in(ray.get(stored, timeout=_AT_HAND_S) if _is_object(stored) else stored)


def _node() -> str:
    return ray.get_runtime_context().get_node_id()


async def fetched(held: Held, ref: PayloadRef, ask: Callable[[], Awaitable[Sequence[Sums] | None]]) -> Bulk:
    """Return what was put, once all of it is on this node; what is not yet comes one object after the other.

    Who reads on the node where it was put reads the very bytes; on another they are compared with their checksums.

    Args:
        held: Where it lies.
        ref: What it is.
        ask: Returns its checksums; None: nobody knows them any more.

    Raises:
        WorkerLost: Some of it is gone, or is not what was put.
    """
    try:
        found = await anyio.to_thread.run_sync(_found_here, held, abandon_on_cancel=True)  # it ends by itself
        if found is None:
            if (sums := await ask()) is None:
                raise not_held(ref)
            parcels = [await result_of(one, STORE) if _is_object(one) else one for one in held.parcels]
            found = await anyio.to_thread.run_sync(unpacked, held.listing, parcels, sums)
    except ValueError as exc:
        raise WorkerLost(worker=STORE, cause=f"{ref.key!r} of {ref.owner!r}: {exc}") from exc
    return found


def _found_here(held: Held) -> Bulk | None:
    """Return what was put if it was put on this node and is there: all at once, for then nothing has to come."""
    if held.listing.node != _node():
        return None
    try:
        objects = [one for one in held.parcels if _is_object(one)]
        there = dict(zip(objects, ray.get(objects, timeout=_AT_HAND_S), strict=True))
        return unpacked(held.listing, [there[one] if _is_object(one) else one for one in held.parcels])
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
