"""Two things that anyio leaves to chance, taken from it while a repeatable loop runs.

Cancellation: anyio keeps the tasks and child scopes of a scope in sets, whose order is that of memory
addresses; 300 cancelled siblings came in 8 to 10 orders in 10 processes (anyio 4.16). Threads: what
runs in one ends whenever it likes, and no virtual clock knows when.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from anyio._backends import _asyncio as backend

T = TypeVar("T")


class RepeatableLoop(asyncio.SelectorEventLoop):
    """A loop for which anyio behaves repeatably; other loops in the process are left as they are."""

    def run_forever(self) -> None:
        """Run, with anyio changed until this returns."""
        with _changed_anyio:
            super().run_forever()


class _SpawnOrder(dict[Any, None]):
    """As much of a set as anyio's scopes use, in the order of adding."""

    def add(self, item: Any) -> None:
        self[item] = None

    def discard(self, item: Any) -> None:
        self.pop(item, None)

    def remove(self, item: Any) -> None:
        del self[item]


def _on_repeatable_loop() -> bool:
    return isinstance(asyncio._get_running_loop(), RepeatableLoop)  # noqa: SLF001 - the one that never raises


_original_init = backend.CancelScope.__init__
_original_thread = vars(backend.AsyncIOBackend)["run_sync_in_worker_thread"]


def _ordered_init(self: Any, *args: Any, **kwargs: Any) -> None:
    _original_init(self, *args, **kwargs)
    if _on_repeatable_loop():
        self._tasks, self._child_scopes = _SpawnOrder(), _SpawnOrder()


async def _run_in_place(
    func: Callable[..., T], args: tuple[Any, ...], abandon_on_cancel: bool = False, limiter: Any = None
) -> T:
    if not _on_repeatable_loop():
        original = _original_thread.__get__(None, backend.AsyncIOBackend)
        return await original(func, args, abandon_on_cancel=abandon_on_cancel, limiter=limiter)
    await backend.AsyncIOBackend.checkpoint()
    async with limiter or backend.AsyncIOBackend.current_default_thread_limiter():
        return func(*args)


class _ChangedAnyio:
    """Changes anyio for the process while at least one loop is inside; loops of several threads may be."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                backend.CancelScope.__init__ = _ordered_init
                backend.AsyncIOBackend.run_sync_in_worker_thread = staticmethod(_run_in_place)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                backend.CancelScope.__init__ = _original_init
                backend.AsyncIOBackend.run_sync_in_worker_thread = _original_thread


_changed_anyio = _ChangedAnyio()
