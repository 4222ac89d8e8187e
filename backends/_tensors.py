"""Tensors as bytes, for stores that know nothing of torch. It is imported where a tensor is, and nowhere else."""

import importlib
import sys
from itertools import pairwise
from typing import Any

_PIECE = 8192
_FIRST, _COMPARED = 1 << 12, 1 << 20  # bytes at once: what moved mostly did so from the first on


def is_tensor(value: object) -> bool:
    """Return whether ``value`` is a torch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def dtype_name(tensor: Any) -> str:
    """Return ``float32``."""
    return str(tensor.dtype).removeprefix("torch.")


def tensor_bytes(tensor: Any) -> memoryview:
    """Return the bytes of a dense tensor, of its own storage where that is contiguous and on the CPU."""
    torch = importlib.import_module("torch")
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy())


def tensor_over(buffer: Any, dtype: str, shape: tuple[int, ...], offset: int) -> Any:
    """Return a tensor that uses a part of a writable buffer, without a copy, and keeps it alive."""
    torch = importlib.import_module("torch")
    kind = getattr(torch, dtype)
    count = 1
    for length in shape:
        count *= length
    if count == 0:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(buffer, dtype=kind, count=count, offset=offset).view(shape)


def writable(view: memoryview) -> Any:
    """Return the same bytes as a buffer that says it may be written to: torch takes no other. Nobody writes to it."""
    numpy = importlib.import_module("numpy")
    kept = numpy.frombuffer(view, dtype=numpy.uint8)

    class Same:
        __array_interface__ = {**kept.__array_interface__, "data": (kept.ctypes.data, False)}
        bytes = kept  # lives as long as what is made of it

    return numpy.asarray(Same())


def sums_of(view: memoryview) -> bytes:
    """Return the sums of the pieces of many bytes, each of 8 KiB taken as whole numbers of 8 bytes.

    One changed bit changes a sum, and a piece in another's place their order; what is swapped within a piece does not
    show.
    """
    numpy = importlib.import_module("numpy")
    words = numpy.frombuffer(view[: view.nbytes // _PIECE * _PIECE], dtype=numpy.uint64)
    return words.reshape(-1, _PIECE // 8).sum(axis=1).tobytes() + bytes(view[words.nbytes :])


def same_bytes(one: memoryview, two: memoryview) -> bool:
    """Return whether two runs of bytes are equal; other threads run meanwhile."""
    if one.nbytes != two.nbytes:
        return False
    numpy = importlib.import_module("numpy")
    pair = [numpy.frombuffer(view, dtype=numpy.uint8) for view in (one, two)]
    starts = (0, *range(_FIRST, one.nbytes, _COMPARED))
    return all(numpy.array_equal(*(view[start:end] for view in pair)) for start, end in pairwise((*starts, one.nbytes)))
