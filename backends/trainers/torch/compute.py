"""One thread of work, beside the event loop."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, TypeVarTuple

import anyio
import torch
from safetensors import SafetensorError

from protocols.errors import PortFailed

T = TypeVar("T")
Args = TypeVarTuple("Args")

LONGEST_PASS_S = 60.0
"""A pass that nobody waits for any more ends within this."""

_FOREIGN = (RuntimeError, ValueError, IndexError, MemoryError, OSError, SafetensorError)
"""What torch (RuntimeError, IndexError for a token it does not have), disks and safetensors raise."""


class Compute:
    """Runs jobs one after the other, all in the same thread.

    A fresh thread would touch fresh memory: glibc gives each an arena of its own, and the 5,000 page faults of a small
    model's step took a third of it.

    Args:
        threads: Cores that a job uses; None leaves torch's setting alone.
    """

    def __init__(self, threads: int | None) -> None:
        prepare = None if threads is None else lambda: torch.set_num_threads(threads)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="trainer", initializer=prepare)
        self._deserted = threading.Event()

    async def run(self, job: Callable[[*Args], T], *args: *Args) -> T:
        """Run ``job`` when those before it have ended.

        Cancelling: before it runs, it does not; else it is waited for, and ends at its next ``interrupt`` or by itself.

        Raises:
            PortFailed: Something foreign was raised.
        """
        deserted = threading.Event()

        def work() -> T:
            self._deserted = deserted
            return job(*args)

        handed = self._thread.submit(work)
        done = asyncio.wrap_future(handed)
        done.add_done_callback(_hear)
        try:
            await asyncio.wait([done])  # which leaves the job alone when it is cancelled
        except anyio.get_cancelled_exc_class():
            deserted.set()
            if not handed.cancel():
                with anyio.move_on_after(LONGEST_PASS_S, shield=True):
                    await asyncio.wait([done])
            raise
        try:
            return done.result()
        except _FOREIGN as exc:
            raise PortFailed(f"the trainer failed: {type(exc).__name__}: {exc}") from exc

    async def close(self) -> None:
        """Wait until the thread rests, at most for a pass, and end it."""
        with anyio.move_on_after(LONGEST_PASS_S, shield=True):
            await self.run(_nothing)
        self._thread.shutdown(wait=False)

    def interrupt(self) -> None:
        """End the job that calls this, if its caller was cancelled."""
        if self._deserted.is_set():
            raise PortFailed("the caller of this job is gone")


def _nothing() -> None:
    """Wait for one's turn."""


def _hear(done: asyncio.Future[Any]) -> None:
    """Take notice of a failure that nobody waits for: asyncio would complain about it."""
    if not done.cancelled():
        done.exception()
