"""One hosted workload: the task that keeps its adapter open, and the calls that are inside it."""

from collections.abc import Callable, Generator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any

import anyio
import structlog

from backends._hosting import described
from protocols.aio import Doorbell, owned
from protocols.backend import WorkerState
from protocols.errors import PortFailed, WorkerLost
from protocols.messages import WorkerId

log = structlog.get_logger()

CLOSE_DEADLINE_S = 10.0
"""How long a workload may take to close by itself; then it is cancelled and has as long again."""


class Worker:
    """A workload from the opening of its adapter to its end.

    An async context must be entered and left in one task, so ``run`` is a task of its own. Once open it is
    shielded from the cancellation of those around it until ``end`` or ``expose``, of which its launcher
    does one on every path.

    Args:
        worker_id: Names it.
        context: The adapter's context, not entered yet.
        wrap: Applied once to the port that it gives.
    """

    def __init__(
        self, worker_id: WorkerId, context: AbstractAsyncContextManager[Any], wrap: Callable[[Any], Any]
    ) -> None:
        self.settled = anyio.Event()  # it is open, or never will be
        self.closed = anyio.Event()
        self.failure: Exception | None = None
        self._worker_id = worker_id
        self._context = context
        self._wrap = wrap
        self._port: Any = None
        self._scope = anyio.CancelScope()
        self._closing = anyio.Event()
        self._calls: dict[anyio.CancelScope, None] = {}
        self._call_ended = Doorbell()

    @property
    def state(self) -> WorkerState:
        """As its launcher knows it."""
        return WorkerState(cause=self._lost().cause) if self.closed.is_set() else WorkerState()

    async def run(self) -> None:
        """Open the adapter, keep it open until told to end, close it. A failure is kept, not raised."""
        try:
            with self._scope:
                await owned(f"worker {self._worker_id}", self._stay_open)
        except Exception as exc:
            self.failure = exc
            if self._closing.is_set():
                log.exception("worker.close_failed", worker_id=self._worker_id)
            elif self.settled.is_set():
                log.exception("worker.died", worker_id=self._worker_id)
        finally:
            self._port = None
            self._cancel_calls()
            self.settled.set()
            self.closed.set()

    async def _stay_open(self) -> None:
        async with self._context as port:
            self._port = self._wrap(port)
            self._scope.shield = True  # whoever is cancelled must find it alive, to abort what it runs
            self.settled.set()
            await self._closing.wait()
            while self._calls:
                await self._call_ended.wait()

    @contextmanager
    def calling(self) -> Generator[Any]:
        """Give the port for one call, which ends with the worker.

        Raises:
            WorkerLost: It is not open, or it ended meanwhile.
        """
        if self._port is None or self._closing.is_set():
            raise self._lost() from self.failure
        with anyio.CancelScope() as scope:
            self._calls[scope] = None
            try:
                yield self._port
            finally:
                del self._calls[scope]
                self._call_ended.ring()
        if scope.cancelled_caught:
            raise self._lost() from self.failure

    async def end(self) -> None:
        """End its calls and let it close; cancel it when that takes too long. Idempotent.

        Cancelling: it goes on closing.

        Raises:
            PortFailed: It holds on to its task through cancellation, and still runs.
        """
        self._closing.set()
        self._cancel_calls()
        if self._port is None:
            self._scope.cancel()
        if await self._closed_in_time():
            return
        log.error("worker.close_timed_out", worker_id=self._worker_id, deadline_s=CLOSE_DEADLINE_S)
        self._scope.cancel()
        if not await self._closed_in_time():
            raise PortFailed(f"worker {self._worker_id} does not end, although it was cancelled")

    def expose(self) -> None:
        """Let the cancellation of those around it reach it again."""
        self._scope.shield = False

    async def _closed_in_time(self) -> bool:
        with anyio.move_on_after(CLOSE_DEADLINE_S):
            await self.closed.wait()
        return self.closed.is_set()

    def _cancel_calls(self) -> None:
        for scope in self._calls:
            scope.cancel()

    def _lost(self) -> WorkerLost:
        return WorkerLost(worker=self._worker_id, cause=described(self.failure) if self.failure else "it was ended")
