"""Where a task waits: the frames on its chain of awaits, and the innermost one that is the program's own."""

import asyncio
import gc
import sysconfig
from collections.abc import Iterable, Iterator
from functools import cache
from types import AsyncGeneratorType, CoroutineType, FrameType
from typing import Any

_FOREIGN = ("/site-packages/", sysconfig.get_path("stdlib"))
_AWAITED = ("cr_await", "gi_yieldfrom", "ag_await")
_FRAMES = ("cr_frame", "gi_frame", "ag_frame")
_SILENT = ("async_generator_asend", "async_generator_athrow", "coroutine_wrapper")
"""Types between a coroutine and an async generator that have no attribute for what they await."""


def awaiting(awaited: Any) -> Iterator[FrameType]:
    """Give the frames of a suspended coroutine and of all that it awaits, outermost first.

    Generators and async generators are followed as well, and whatever else says what it awaits in an
    attribute ``cr_await``.
    """
    while awaited is not None:
        frame = _first(awaited, _FRAMES)
        if frame is not None:
            yield frame
        awaited = _inner(awaited)


def site(awaited: Any) -> str:
    """Return ``file:line in function`` of the innermost frame that is neither a library's nor Python's.

    Where there is none, of the innermost frame; ``?`` of what is done.
    """
    own = last = None
    for last in awaiting(awaited):
        if not _is_foreign(last.f_code.co_filename):
            own = last
    frame = own or last
    if frame is None:
        return "?"
    return f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno} in {frame.f_code.co_qualname}"


def waiting_tasks(tasks: Iterable[asyncio.Task[Any]]) -> tuple[str, ...]:
    """Return ``name at site`` of each task, in alphabetical order."""
    return tuple(sorted(f"{task.get_name()} at {site(task.get_coro())}" for task in tasks))


def _inner(awaited: Any) -> Any:
    """Return what ``awaited`` awaits itself; None where it says nothing."""
    if type(awaited).__name__ in _SILENT:
        kinds = (AsyncGeneratorType, CoroutineType)
        return next((inner for inner in gc.get_referents(awaited) if isinstance(inner, kinds)), None)
    return _first(awaited, _AWAITED)


def _first(awaited: Any, attributes: tuple[str, ...]) -> Any:
    for name in attributes:
        if (found := getattr(awaited, name, None)) is not None:
            return found
    return None


@cache
def _is_foreign(filename: str) -> bool:
    return any(part in filename for part in _FOREIGN)
