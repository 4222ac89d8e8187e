"""A payload as Ray stores it: a head, and bytes that are neither copied nor pickled when they are read."""

import pickle
import zlib
from dataclasses import dataclass
from typing import Any

from backends._messages import decoded, encoded
from backends._tensors import dtype_name, is_tensor, tensor_bytes, tensor_over, writable
from protocols.backend import Bulk
from protocols.messages import Message


class Piece:
    """Bytes that Ray keeps beside the pickle, at a multiple of 64, and maps where they are read."""

    def __init__(self, buffer: Any) -> None:
        self.view = memoryview(buffer).cast("B")

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return (Piece, (pickle.PickleBuffer(self.view),))


@dataclass(frozen=True)
class _Array:
    """One array. ``dtype`` is torch's name for it, or empty for plain bytes; ``checksum``: CRC-32."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    checksum: int
    piece: Piece


@dataclass(frozen=True)
class Stored:
    """What is put.

    Attributes:
        message: A message's class, ``module:Class``; None: a mapping of arrays.
        arrays: The message's bytes, or the arrays.
    """

    message: str | None
    arrays: tuple[_Array, ...]

    @classmethod
    def of(cls, value: Bulk) -> "Stored":
        """Return a payload as it is stored; arrays are not copied.

        Raises:
            TypeError: It holds what is neither message nor array.
        """
        if isinstance(value, Message):
            name, body = encoded(value)
            return cls(name, (_array("", body),))
        return cls(None, tuple(_array(name, one) for name, one in value.items()))

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(one.piece.view.nbytes for one in self.arrays)

    def value(self) -> Bulk:
        """Return what was stored; arrays lie where the bytes do.

        Raises:
            ValueError: The bytes are not those that were put, or are no such message here.
        """
        for one in self.arrays:
            if zlib.crc32(one.piece.view) != one.checksum:
                raise ValueError(f"{one.name or self.message} is damaged")
        if self.message is not None:
            return decoded(self.message, self.arrays[0].piece.view)
        return {one.name: _restored(one) for one in self.arrays}


def _array(name: str, value: Any) -> _Array:
    data = tensor_bytes(value) if is_tensor(value) else memoryview(value).cast("B")
    dtype, shape = (dtype_name(value), tuple(value.shape)) if is_tensor(value) else ("", (data.nbytes,))
    return _Array(name, dtype, shape, zlib.crc32(data), Piece(data))


def _restored(one: _Array) -> Any:
    view = one.piece.view
    if not one.dtype:
        return view
    return tensor_over(writable(view) if view.nbytes else b"", one.dtype, one.shape, 0)
