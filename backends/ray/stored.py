"""A payload as Ray stores it: what it is made of, and bytes that are neither copied nor pickled when they are read.

A mapping of arrays is many objects: one for each large array, small ones together. So an array that is as it was the
last time is not put again. Those that moved the last time will move again, and share objects too: whoever reads asks
the owner of each object. None is much larger than the largest array, which bounds what is allocated at once.
"""

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

_TOGETHER = 64 << 20
"""Bytes of arrays in one object from which on it takes no more."""


class Piece:
    """Bytes that Ray keeps beside the pickle, at a multiple of 64, and maps where they are read."""

    def __init__(self, buffer: Any) -> None:
        self.view = memoryview(buffer).cast("B")

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return (Piece, (pickle.PickleBuffer(self.view),))


Parcel = tuple[Piece, ...]
"""What is put as one object."""

Part = Sequence[tuple[str, Any]]
"""What of a payload comes into one parcel: names and arrays, or the bytes of a message without a name."""


@dataclass(frozen=True)
class Array:
    """What one array is, beside its bytes.

    Attributes:
        dtype: Torch's name for it, or empty for plain bytes.
        checksum: Of the bytes, see ``checksum``.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    checksum: int


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


@dataclass(frozen=True)
class Packed:
    """A payload that can be put: of each object the arrays, and their bytes."""

    message: str | None
    parcels: tuple[tuple[tuple[Array, ...], Parcel], ...]

    def listing(self, node: str) -> Listing:
        """Return what is told of it, once it is put on a node."""
        size = sum(size_of(parcel) for _, parcel in self.parcels)
        return Listing(self.message, node, tuple(arrays for arrays, _ in self.parcels), size)


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


def packed(value: Bulk) -> Packed:
    """Return a payload in parcels; arrays are not copied.

    Raises:
        TypeError: It holds what is neither message nor array.
    """
    message, parts = parted(value)
    return Packed(message, tuple(map(parcel_of, parts)))


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


def unpacked(listing: Listing, parcels: Sequence[Parcel], *, check: bool) -> Bulk:
    """Return what was put; arrays lie where the bytes do.

    Args:
        listing: What they are.
        parcels: The bytes.
        check: Whether they are compared with their checksums.

    Raises:
        ValueError: The bytes are not those that were put, or are no such message here.
    """
    pairs = [
        (array, piece)
        for arrays, parcel in zip(listing.parcels, parcels, strict=True)
        for array, piece in zip(arrays, parcel, strict=True)
    ]
    for array, piece in pairs if check else ():
        if checksum(piece.view) != array.checksum:
            raise ValueError(f"{array.name or listing.message} is damaged")
    if listing.message is not None:
        return decoded(listing.message, pairs[0][1].view)
    return {array.name: _restored(array, piece) for array, piece in pairs}


def checksum(view: memoryview) -> int:
    """Return CRC-32 of bytes; of many, CRC-32 of the sums of their pieces, which costs a fifth."""
    return zlib.crc32(view if view.nbytes < _LARGE else sums_of(view))


def same(parcel: Parcel, other: Parcel) -> bool:
    """Return whether two parcels have the same bytes."""
    pairs = list(zip(parcel, other, strict=True))
    if any(one.view.nbytes != two.view.nbytes for one, two in pairs):
        return False
    return all(_equal(one.view, two.view) for one, two in pairs)


def _equal(one: memoryview, two: memoryview) -> bool:
    words = one.nbytes // 8 * 8  # compared by eights, for Python looks at each element by itself
    return one[:words].cast("Q") == two[:words].cast("Q") and one[words:] == two[words:]


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
    return Array(name, dtype, shape, checksum(piece.view)), piece


def _restored(array: Array, piece: Piece) -> Any:
    if not array.dtype:
        return piece.view
    return tensor_over(writable(piece.view) if piece.view.nbytes else b"", array.dtype, array.shape, 0)
