"""A run under signals: the first one lets it clean up, the second ends it where it stands."""

import multiprocessing
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from types import FrameType
from typing import Generic, NoReturn, TypeVar

import anyio

from protocols.aio import owned

T = TypeVar("T")

_SHOW_CURSOR = "\x1b[?25h"


@dataclass(kw_only=True)
class Ending(Generic[T]):
    """How something that ran under signals ended.

    Attributes:
        value: What it returned; None: it failed or was stopped.
        error: What it raised.
        stopped_by: The signal that asked it to stop, whether or not it had to.
    """

    value: T | None = None
    error: Exception | None = None
    stopped_by: signal.Signals | None = None


async def under_signals(run: Callable[[], Awaitable[T]], say: Callable[[str], None]) -> Ending[T]:
    """Await ``run()``; the first SIGINT or SIGTERM cancels it, the second ends the process at once.

    Args:
        run: What to await. Cancelled, it cleans up for itself.
        say: Tells people that a signal was heard.
    """
    ending: Ending[T] = Ending()
    scope = anyio.CancelScope()

    async def obey(signals: AsyncIterator[signal.Signals]) -> None:
        async for signum in signals:
            ending.stopped_by = ending.stopped_by or signum
            scope.cancel()

    def hear(signum: int, _frame: FrameType | None) -> None:
        """Run in the main thread between two instructions, also while the event loop is blocked."""
        heard.append(signum)
        if len(heard) > 1:
            end_now(signal.Signals(signum))
        say(f"{signal.Signals(signum).name}: stopping; once more to stop at once")

    heard: list[int] = []
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, hear)  # beside the loop's own wake-up, which stays
        async with anyio.create_task_group() as group:
            group.start_soon(obey, signals, name="signals")
            with scope:
                try:
                    ending.value = await owned("the run", run)
                except Exception as exc:  # noqa: BLE001 - handed out below the group, which would wrap it
                    ending.error = exc
            group.cancel_scope.cancel()
    return ending


def end_now(signum: signal.Signals) -> NoReturn:
    """End the process and the worker processes it has, without waiting for anything."""
    for child in multiprocessing.active_children():
        child.kill()
    if sys.stdout.isatty():
        sys.stdout.write(_SHOW_CURSOR)  # which a live display hides
        sys.stdout.flush()
    os._exit(128 + signum)
