"""A payload as Ray stores it: what it is made of, and bytes that are neither copied nor pickled when they are read.

A mapping of arrays is many objects: one for each large array, small ones together. So an array that is as it was the
last time is not put again. Those that moved the last time will move again, and share objects too: whoever reads asks
the owner of each object. Their size is bounded, and with it what is allocated and sent at once.
"""

import itertools
import pickle
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backends._messages import decoded, encoded
from backends._tensors import dtype_name, is_tensor, sums_of, tensor_bytes, tensor_over, writable
from protocols.backend import Bulk
from protocols.messages import Message

_LARGE = 1 << 20
"""Bytes of an array from which on it has an object of its own."""

_TOGETHER = 256 << 20
"""Bytes of arrays in one object from which on it takes no more."""


class Piece:
    """Bytes that Ray keeps beside the pickle, at a multiple of 64, and maps where they are read."""

    def __init__(self, buffer: Any) -> None:
        self.view = memoryview(buffer).cast("B")

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return (Piece, (pickle.PickleBuffer(self.view),))


Parcel = tuple[Piece, ...]
"""What is put as one object."""

Sums = tuple[int, ...]
"""Of each piece of a parcel the checksum."""

Part = Sequence[tuple[str, Any]]
"""What of a payload comes into one parcel: names and arrays, or the bytes of a message without a name."""


@dataclass(frozen=True)
class Array:
    """What one array is, beside its bytes.

    Attributes:
        dtype: Torch's name for it, or empty for plain bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Listing:
    """What a payload is made of; it goes to the directory, and the parcels do not.

    Attributes:
        message: A message's class, ``module:Class``; None: a mapping of arrays.
        node: Ray's id of the node that it was put on.
        parcels: For each object the arrays in it, in order.
        size: Bytes of all arrays.
    """

    message: str | None
    node: str
    parcels: tuple[tuple[Array, ...], ...]
    size: int


def parted(value: Bulk, moving: Collection[str] = ()) -> tuple[str | None, list[Part]]:
    """Return the class of a message, or None of a mapping, and the parts; no array is looked into.

    Args:
        value: The payload.
        moving: Names of arrays that need no object of their own, however large.

    Raises:
        TypeError: It holds what is neither message nor array.
    """
    if isinstance(value, Message):
        name, body = encoded(value)
        return name, [[("", body)]]
    return None, [*_grouped(value, moving)]


def parcel_of(part: Part) -> tuple[tuple[Array, ...], Parcel]:
    """Return what the arrays of one part are, and their bytes, not copied.

    Raises:
        TypeError: Something is no array.
    """
    pairs = [_array(name, value) for name, value in part]
    return tuple(array for array, _ in pairs), tuple(piece for _, piece in pairs)


def size_of(parcel: Parcel) -> int:
    """Return how many bytes it holds."""
    return sum(piece.view.nbytes for piece in parcel)


def unpacked(listing: Listing, parcels: Sequence[Parcel], sums: Sequence[Sums] | None = None) -> Bulk:
    """Return what was put; arrays lie where the bytes do.

    Args:
        listing: What they are.
        parcels: The bytes.
        sums: What their checksums must be; None: they are not compared.

    Raises:
        ValueError: The bytes are not those that were put, or are no such message here.
    """
    pairs = [
        (array, piece)
        for arrays, parcel in zip(listing.parcels, parcels, strict=True)
        for array, piece in zip(arrays, parcel, strict=True)
    ]
    if sums is not None:
        found = itertools.chain.from_iterable(map(sums_in, parcels))
        for (array, _), one, two in zip(pairs, found, itertools.chain.from_iterable(sums), strict=True):
            if one != two:
                raise ValueError(f"{array.name or listing.message} is damaged")
    if listing.message is not None:
        return decoded(listing.message, pairs[0][1].view)
    return {array.name: _restored(array, piece) for array, piece in pairs}


def is_object(stored: Any) -> bool:
    """Return whether what holds a parcel is a reference, and not the parcel itself, which is small."""
    return not isinstance(stored, tuple)


def sums_in(parcel: Parcel) -> Sums:
    """Return the checksums of its pieces."""
    return tuple(checksum(piece.view) for piece in parcel)


def checksum(view: memoryview) -> int:
    """Return CRC-32 of bytes; of many, CRC-32 of the sums of their pieces, which costs a fifth."""
    return zlib.crc32(view if view.nbytes < _LARGE else sums_of(view))


def _grouped(value: Mapping[str, Any], moving: Collection[str]) -> Iterator[Part]:
    together: dict[bool, list[tuple[str, Any]]] = {False: [], True: []}  # by whether they move
    sizes = {False: 0, True: 0}
    for name, array in value.items():
        moves = name in moving
        nbytes = array.nbytes if is_tensor(array) else memoryview(array).nbytes
        if nbytes >= _LARGE and not moves:
            yield [(name, array)]
            continue
        together[moves].append((name, array))
        sizes[moves] += nbytes
        if sizes[moves] >= _TOGETHER:
            yield together[moves]
            together[moves], sizes[moves] = [], 0
    yield from filter(None, together.values())


def _array(name: str, value: Any) -> tuple[Array, Piece]:
    piece = Piece(tensor_bytes(value) if is_tensor(value) else memoryview(value).cast("B"))
    dtype, shape = (dtype_name(value), tuple(value.shape)) if is_tensor(value) else ("", (piece.view.nbytes,))
    return Array(name, dtype, shape), piece


def _restored(array: Array, piece: Piece) -> Any:
    if not array.dtype:
        return piece.view
    return tensor_over(writable(piece.view) if piece.view.nbytes else b"", array.dtype, array.shape, 0)
