"""The payload store of a cluster: objects of Ray, and one actor that knows which is whose.

Whoever puts or gets does so himself: bytes go from the store of one node to that of another, once for each node however
many of its processes read them, and never to the controller. An object ends with the process that put it. What is small
is no object, as with Ray's own arguments and results: the actor that knows whose it is holds the bytes.
"""

import itertools
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import anyio
import anyio.to_thread
import ray
import ray.exceptions as rx

from backends._failures import decode_failure
from backends.ray.calls import result_of
from backends.ray.failures import translated
from backends.ray.previous import AT_HAND_S, Previous
from backends.ray.stored import (
    Array,
    Listing,
    Parcel,
    Part,
    Piece,
    Sums,
    is_object,
    parcel_of,
    parted,
    size_of,
    sums_in,
    unpacked,
)
from backends.ray.together import MESSAGE_BYTES, Together
from protocols.backend import Bulk, PayloadPort
from protocols.errors import InvariantError, WorkerLost
from protocols.messages import Message, PayloadRef

STORE = "payload store"

_AT_ONCE = 4  # objects that are compared and copied at the same time: one alone does not fill the memory's bandwidth
_SMALL = MESSAGE_BYTES
"""Bytes of what is no object. One costs its maker, its readers and the directory more messages than bytes."""


_QUESTION = 200
"""About the bytes of a reference."""


@dataclass(frozen=True)
class Held:
    """A payload in the store.

    Attributes:
        listing: What it is made of.
        parcels: In that order, references to objects, and parcels that are small.
        sums: In that order, their checksums; None: ``maker`` is asked by who reads it on another node.
        maker: Ray's id of the actor that put it, where it is asked.
    """

    listing: Listing
    parcels: list[Any] = field(repr=False)
    sums: tuple[Sums | None, ...]
    maker: str = ""


Change = tuple[PayloadRef, Held] | str
"""What a process says to the directory: what it keeps, or whose payloads it releases."""


class _Stored(NamedTuple):
    """A parcel that is stored.

    Attributes:
        arrays: What is in it.
        size: Bytes.
        sums: Of them; None: they are made when somebody asks.
        object: What holds them: an object of Ray, or a copy.
        fresh: Whether that was made for it.
        moved: Names of those whose bytes are not as they were in the last mapping.
    """

    arrays: tuple[Array, ...]
    size: int
    sums: Sums | None
    object: Any
    fresh: bool = True
    moved: tuple[str, ...] = ()


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
        self._changes: Together[Change, None] = Together(directory.change.remote, STORE, _size)
        self._find: Together[PayloadRef, Held | None] = Together(directory.find.remote, STORE, lambda _: _QUESTION)
        self._answers_sums = answers_sums
        self._maker = ""  # once the directory knows it
        self._previous = Previous()
        self._summing = anyio.Lock()
        self._sums: dict[str, Sums] = {}  # by Ray's id: a reference would keep the object
        self.bytes_put = 0
        self.bytes_got = 0

    async def put(self, ref: PayloadRef, value: Bulk) -> None:
        """Store ``value``; see ``PayloadPort.put``. It is copied into the object store, once.

        Raises:
            Transient: The store is full.
            InvariantError: ``value`` cannot be stored.
        """
        if self._answers_sums and not self._maker and not isinstance(value, Message):
            await self._introduce()
        held = await anyio.to_thread.run_sync(self._put, ref, value)
        await self._changes.ask((ref, held))

    async def get(self, ref: PayloadRef) -> Bulk:
        """Return what was put; see ``PayloadPort.get``. Arrays lie in the object store: nobody writes to them."""
        found = await self._find.ask(ref)
        if found is None:
            raise not_held(ref)
        value = await fetched(found, ref, self._asked_for_sums)
        self.bytes_got += found.listing.size
        return value

    async def release(self, owner: str) -> None:
        """Forget the payloads of every owner that starts with ``owner``; see ``PayloadPort.release``.

        What this process put before, cancelled or not, is there before.
        """
        await self._changes.ask(owner)

    async def sums(self, objects: Sequence[Any]) -> list[Sums]:
        """Return the checksums of objects that this process put. They are made once.

        Raises:
            RayError: One is gone.
        """
        found: list[Sums] = []
        async with self._summing:  # who asks second finds them
            for one in objects:
                if (sums := self._sums.get(one.hex())) is None:
                    sums = self._sums[one.hex()] = await anyio.to_thread.run_sync(_sums_of, one)
                found.append(sums)
        return found

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

    async def _asked_for_sums(self, held: Held) -> list[Sums]:
        maker = await result_of(self._directory.maker.remote(held.maker), STORE)
        asked = [one for one, sums in zip(held.parcels, held.sums, strict=True) if sums is None]
        told = None if maker is None else await result_of(maker.sums.remote(asked), STORE)
        if told is None:
            raise WorkerLost(worker=STORE, cause="what was put is gone where it was put")
        missing = iter(told)
        return [next(missing) if sums is None else sums for sums in held.sums]

    def _put(self, ref: PayloadRef, value: Bulk) -> Held:
        previous = self._previous  # another put may end meanwhile
        try:
            message, parts = parted(value, previous.moved)
            if message is not None:
                stored = [*map(_put_anew, parts)]
            elif len(parts) == 1:
                stored = [self._put_one(parts[0], previous)]
            else:
                with ThreadPoolExecutor(_AT_ONCE) as threads:
                    stored = list(threads.map(lambda part: self._put_one(part, previous), parts))
        except TypeError as exc:
            raise InvariantError(f"{ref} cannot be stored: {exc}") from exc
        except rx.RayError as exc:
            raise translated(STORE, exc) from exc
        self.bytes_put += sum(one.size for one in stored if one.fresh)
        if message is None:
            moved = itertools.chain.from_iterable(one.moved for one in stored)
            objects = {one.arrays: one.object for one in stored}
            self._previous = Previous(objects, moved if previous.objects else ())
            kept = {one.hex() for one in objects.values() if is_object(one)}
            self._sums = {one: sums for one, sums in tuple(self._sums.items()) if one in kept}
        return _held(message, stored, self._maker)

    def _put_one(self, part: Part, previous: Previous) -> _Stored:
        """Put what a mapping has in one object, unless it is what it was."""
        arrays, parcel = parcel_of(part)
        moved = previous.others(arrays, parcel)
        known = None if moved else previous.objects.get(arrays)
        stored = _object_of(parcel) if known is None else known
        sums = _sums_at_once(parcel, self._maker)
        return _Stored(arrays, size_of(parcel), sums, stored, fresh=known is None, moved=moved)


def put_alone(value: Bulk) -> Held:
    """Put a payload that resembles none before it, and sum it up.

    Raises:
        Transient: The store is full.
        TypeError: It holds what is neither message nor array.
    """
    message, parts = parted(value)
    try:
        return _held(message, [*map(_put_anew, parts)])
    except rx.RayError as exc:
        raise translated(STORE, exc) from exc


def _put_anew(part: Part) -> _Stored:
    arrays, parcel = parcel_of(part)
    return _Stored(arrays, size_of(parcel), sums_in(parcel), _object_of(parcel))


def _object_of(parcel: Parcel) -> Any:
    """Put a parcel, or copy one that is small: what it views is its maker's, and may change."""
    if size_of(parcel) <= _SMALL:
        return tuple(Piece(bytes(piece.view)) for piece in parcel)
    return ray.put(parcel)


def _sums_at_once(parcel: Parcel, maker: str) -> Sums | None:
    """Return the sums of what is small, and of everything where nobody can be asked for them later."""
    return sums_in(parcel) if not maker or size_of(parcel) <= _SMALL else None


def _sums_of(stored: Any) -> Sums:
    return sums_in(ray.get(stored, timeout=AT_HAND_S))


def _held(message: str | None, stored: Sequence[_Stored], maker: str = "") -> Held:
    size = sum(one.size for one in stored)
    listing = Listing(message, _node(), tuple(one.arrays for one in stored), size)
    return Held(listing, [one.object for one in stored], tuple(one.sums for one in stored), maker)


def _size(change: Change) -> int:
    return len(change) if isinstance(change, str) else small_bytes(change[1])


def small_bytes(held: Held | None) -> int:
    """Return the bytes of a payload that are in no object."""
    return 0 if held is None else sum(size_of(one) for one in held.parcels if not is_object(one))


def _node() -> str:
    return ray.get_runtime_context().get_node_id()


async def fetched(held: Held, ref: PayloadRef, ask: Callable[[Held], Awaitable[Sequence[Sums]]] | None = None) -> Bulk:
    """Return what was put, once all of it is on this node; what is not yet comes one object after the other.

    Who reads on the node where it was put reads the very bytes; on another they are compared with their checksums.

    Args:
        held: Where it lies.
        ref: What it is.
        ask: Asks its maker for the checksums that are not known, which are those of weights.

    Raises:
        WorkerLost: Some of it is gone, or is not what was put.
    """
    here = held.listing.node == _node()
    sums: Sequence[Sums] | None = None
    if not here:
        sums = [one for one in held.sums if one is not None]
        if len(sums) < len(held.sums):
            if ask is None:
                raise not_held(ref)
            sums = await ask(held)
    parcels = [await result_of(one, STORE) if is_object(one) else one for one in held.parcels]
    try:
        if here and held.listing.message is None:  # nothing is read
            return unpacked(held.listing, parcels)
        return await anyio.to_thread.run_sync(unpacked, held.listing, parcels, sums)
    except ValueError as exc:
        raise WorkerLost(worker=STORE, cause=f"{ref.key!r} of {ref.owner!r}: {exc}") from exc


def not_held(ref: PayloadRef) -> WorkerLost:
    """Return the error of a payload that is not there."""
    return WorkerLost(worker=STORE, cause=f"it holds no {ref.key!r} of {ref.owner!r}")


def _raise(failure: bytes) -> None:
    if failure:
        raise decode_failure(failure)


_: type[PayloadPort] = RayPayloads
