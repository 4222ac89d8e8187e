"""Runs a decoder off the event loop. Knows nothing of what it decodes."""

import asyncio
import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import anyio
import structlog

from protocols.aio import bounded_shield
from protocols.errors import ConductorError, WorkerLost

log = structlog.get_logger(__name__)
T = TypeVar("T")
Action = Callable[[], Any]
Order = tuple[Action, "asyncio.Future[Any] | None"]
Reply = tuple["asyncio.Future[Any]", Any, ConductorError | None]

GATHER_S = 0.002
"""An engine at rest begins when nothing more has come for so long: requests of one wave then share every step."""

LONGEST_GATHER_S = 0.01
"""And after this whatever comes."""


class Stepper(Protocol):
    """What the thread runs; the thread alone calls it."""

    @property
    def busy(self) -> bool:
        """Whether there is a step to make."""
        ...

    def step(self) -> None:
        """Make one."""
        ...

    def take_events(self) -> Sequence[Any]:
        """Return what happened since the last time, in order."""
        ...


class EngineThread:
    """A thread that steps while there is work, and in between does what the event loop asks for.

    Actions run in the order of asking. Those of one turn of the event loop reach the thread together, and a thread at
    rest gathers for a moment before it steps, so that requests made at once also start at once. Events and replies
    come back in the order in which they arose, in one hop for all that arose together; the events of an action come
    before its reply. A failure of a step, or of an action in a way that is no ``ConductorError``, ends the thread:
    whoever waits gets ``WorkerLost``, and so does whoever asks later.

    Args:
        worker: Names the engine in errors.
        stepper: What to run.
        on_events: Called on the event loop.
        on_lost: Called on the event loop when the thread failed.
    """

    def __init__(
        self,
        worker: str,
        stepper: Stepper,
        *,
        on_events: Callable[[Sequence[Any]], None],
        on_lost: Callable[[WorkerLost], None],
    ) -> None:
        self._worker = worker
        self._stepper = stepper
        self._on_events = on_events
        self._on_lost = on_lost
        self._inbox: queue.SimpleQueue[list[Order] | None] = queue.SimpleQueue()
        self._orders: list[Order] = []
        self._waiting_orders: list[Order] | None = []
        self._asked: set[asyncio.Future[Any]] = set()
        self._cause: str | None = None
        self._loop = asyncio.get_running_loop()
        # a daemon: a step that never returns must not keep the process from ending
        self._thread = threading.Thread(target=self._run, name=worker, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def lost(self) -> WorkerLost | None:
        """A fresh error, if the thread failed or was closed."""
        return None if self._cause is None else WorkerLost(worker=self._worker, cause=self._cause)

    def post(self, action: Action) -> None:
        """Have ``action`` done between two steps; nobody waits for it."""
        self._order(action, None)

    async def ask(self, action: Callable[[], T]) -> T:
        """Have ``action`` done between two steps and return its result.

        Cancelling: it is done all the same.

        Raises:
            WorkerLost: The thread failed or was closed.
            ConductorError: Whatever the action raised.
        """
        reply: asyncio.Future[T] = self._loop.create_future()
        if self.lost is not None:
            reply.set_exception(self.lost)
        else:
            self._asked.add(reply)
            self._order(action, reply)
        try:
            return await reply
        finally:
            self._asked.discard(reply)

    async def close(self, deadline_s: float) -> None:
        """Stop after the current step and wait for it, at most ``deadline_s`` seconds."""
        self._hand_over()
        self._inbox.put(None)
        try:
            with bounded_shield(deadline_s):
                await anyio.to_thread.run_sync(self._thread.join, deadline_s, abandon_on_cancel=True)
            if self._thread.is_alive():
                log.error("engine.close_timed_out", worker=self._worker, deadline_s=deadline_s)
        finally:
            self._lose("it was closed")

    def _order(self, action: Action, reply: "asyncio.Future[Any] | None") -> None:
        self._orders.append((action, reply))
        if len(self._orders) == 1:
            self._loop.call_soon(self._hand_over)

    def _hand_over(self) -> None:
        orders, self._orders = self._orders, []
        self._inbox.put(orders)

    def _run(self) -> None:
        try:
            while self._act():
                self._stepper.step()
                self._send([])
        except BaseException as exc:  # noqa: ASYNC103 - a thread: nobody above it could catch it
            cause = f"{type(exc).__name__}: {exc}"
            log.exception("engine.failed", worker=self._worker)
            self._call_loop(self._lose, cause)

    def _act(self) -> bool:
        """Do what is asked for; block while there is no step to make. False: stop."""
        gathering = not self._stepper.busy  # then nothing stands still while more of a wave comes in
        until = math.inf
        while True:
            if not self._do_all():
                return False
            if not self._stepper.busy:
                self._waiting_orders = self._inbox.get()
                continue
            if not gathering:
                return True
            until = min(until, time.monotonic() + LONGEST_GATHER_S)
            patience = min(GATHER_S, until - time.monotonic())
            try:
                self._waiting_orders = self._inbox.get(timeout=max(0.0, patience))
            except queue.Empty:
                return True

    def _do_all(self) -> bool:
        """Do all that is asked for by now and answer; returns False where the end was asked for."""
        replies: list[Reply] = []
        while True:
            if self._waiting_orders is None:
                return False
            for action, reply in self._waiting_orders:
                value, error = _outcome(action)
                if reply is not None:
                    replies.append((reply, value, error))
            self._waiting_orders = []
            if self._inbox.empty():
                self._send(replies)
                return True
            self._waiting_orders = self._inbox.get()

    def _send(self, replies: list[Reply]) -> None:
        events = self._stepper.take_events()
        if events or replies:
            self._call_loop(self._land, events, replies)

    def _call_loop(self, callback: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:  # the loop closed first: nobody waits any more
            log.warning("engine.outlived_its_loop", worker=self._worker)

    def _land(self, events: Sequence[Any], replies: list[Reply]) -> None:
        if self._cause is not None:
            return
        self._on_events(events)
        for reply, value, error in replies:
            if reply.done():
                continue
            if error is None:
                reply.set_result(value)
            else:
                reply.set_exception(error)

    def _lose(self, cause: str) -> None:
        if self._cause is not None:
            return
        self._cause = cause
        for reply in self._asked:
            if not reply.done():
                reply.set_exception(WorkerLost(worker=self._worker, cause=cause))
        self._on_lost(WorkerLost(worker=self._worker, cause=cause))


def _outcome(action: Action) -> tuple[Any, ConductorError | None]:
    try:
        return action(), None
    except ConductorError as exc:
        return None, exc
