"""One thread of work at a time, beside the event loop."""

import threading
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

import anyio
import anyio.from_thread
import anyio.to_thread
import torch
from safetensors import SafetensorError

from protocols.errors import PortFailed

T = TypeVar("T")
Args = TypeVarTuple("Args")

_FOREIGN = (RuntimeError, ValueError, IndexError, MemoryError, OSError, SafetensorError)
"""What torch (RuntimeError, IndexError for a token it does not have), disks and safetensors raise."""


class Compute:
    """Runs jobs one after the other, each in a thread.

    Args:
        threads: Cores that a job uses; None leaves torch's setting alone.
    """

    def __init__(self, threads: int | None) -> None:
        self._threads = threads
        self._turn = anyio.CapacityLimiter(1)
        self._busy = threading.Lock()
        self._deserted = threading.Event()

    async def run(self, job: Callable[[*Args], T], *args: *Args) -> T:
        """Run ``job`` in a thread when those before it have ended.

        Cancelling: before it runs, it does not; then it ends at its next ``interrupt``, or by itself.

        Raises:
            PortFailed: Something foreign was raised.
        """
        deserted = threading.Event()

        def work() -> T:
            with self._busy:  # a native Task.cancel ends the wait, and frees the limiter, while the thread works on
                self._deserted = deserted
                if self._threads is not None:
                    torch.set_num_threads(self._threads)
                return job(*args)

        try:
            return await anyio.to_thread.run_sync(work, limiter=self._turn)
        except anyio.get_cancelled_exc_class():
            deserted.set()
            raise
        except _FOREIGN as exc:
            raise PortFailed(f"the trainer failed: {type(exc).__name__}: {exc}") from exc

    def interrupt(self) -> None:
        """End the job that calls this, if its caller was cancelled."""
        anyio.from_thread.check_cancelled()
        if self._deserted.is_set():
            raise PortFailed("the caller of this job is gone")
