"""A payload as a file: a head that says what lies where, then the bytes, each array at a multiple of 64.

What is read is mapped, not copied: however many processes of a machine use the same weights, they are there once. A
mapping stays whole when the file is removed or replaced.
"""

import math
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from backends._messages import decoded, encoded
from backends._tensors import dtype_name, is_tensor, tensor_bytes, tensor_over
from protocols.backend import Bulk
from protocols.messages import Message

_ALIGNED = 64  # bytes; so does torch align what it allocates, and takes other code paths where it is not
_LENGTH = 8  # bytes that hold the length of the head


class _Array(Message, frozen=True, kw_only=True):
    """One array. ``dtype`` is torch's name for it, or empty for plain bytes; ``offset`` counts from the first array."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int


class _Head(Message, frozen=True, kw_only=True):
    """What the file holds: a message of the class ``module:Class``, or arrays."""

    message: str | None
    arrays: tuple[_Array, ...]
    size: int


class Unreadable(Exception):
    """The file is no payload, or less than one."""


def encode(value: Bulk) -> list[bytes | memoryview]:
    """Return what the file is to hold, in order; arrays are not copied.

    Raises:
        TypeError: It holds something that is neither a tensor nor bytes, or is no message.
    """
    if isinstance(value, Message):
        name, body = encoded(value)
        return [*_head(_Head(message=name, arrays=(), size=len(body))), body]
    arrays: list[_Array] = []
    parts: list[bytes | memoryview] = []
    end = 0
    for name, one in value.items():
        data = tensor_bytes(one) if is_tensor(one) else memoryview(one).cast("B")
        dtype, shape = (dtype_name(one), tuple(one.shape)) if is_tensor(one) else ("", (data.nbytes,))
        arrays.append(_Array(name=name, dtype=dtype, shape=shape, offset=end, size=data.nbytes))
        parts += [data, bytes(-data.nbytes % _ALIGNED)]
        end += data.nbytes + len(parts[-1])
    return [*_head(_Head(message=None, arrays=tuple(arrays), size=end)), *parts]


def _head(head: _Head) -> Iterator[bytes]:
    data = msgspec.msgpack.encode(head)
    yield len(data).to_bytes(_LENGTH)
    yield data
    yield bytes(-(_LENGTH + len(data)) % _ALIGNED)


def read(path: Path) -> Bulk:
    """Map a file and return what it holds.

    Raises:
        FileNotFoundError: There is none.
        Unreadable: It is no payload.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        # a private copy of each page that somebody writes to: torch takes no buffer that is read-only
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) if size else None
    if mapped is None:
        raise Unreadable("it is empty")
    length = int.from_bytes(mapped[:_LENGTH])
    begin = math.ceil((_LENGTH + length) / _ALIGNED) * _ALIGNED
    try:
        head = msgspec.msgpack.decode(mapped[_LENGTH : _LENGTH + length], type=_Head)
    except msgspec.MsgspecError as exc:
        raise Unreadable(f"it has no head: {exc}") from exc
    if begin + head.size != size:
        raise Unreadable(f"it has {size} bytes, not {begin + head.size}")
    if head.message is not None:
        try:
            return decoded(head.message, mapped[begin:])
        except ValueError as exc:
            raise Unreadable(str(exc)) from exc
    return {one.name: _array(mapped, one, begin) for one in head.arrays}


def _array(mapped: mmap.mmap, one: _Array, begin: int) -> Any:
    if one.dtype:
        return tensor_over(mapped, one.dtype, one.shape, begin + one.offset)
    return memoryview(mapped)[begin + one.offset : begin + one.offset + one.size]
