"""The thread that owns an open store: one transaction for all appends that wait, and an answer for each."""

import asyncio
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

import anyio
import structlog

from backends.ledgers._sqlite.store import Store
from protocols.errors import ConductorError, PortFailed

log = structlog.get_logger(__name__)
T = TypeVar("T")


class _Append(NamedTuple):
    events: Sequence[bytes]
    reply: asyncio.Future[Any]


class _Ask(NamedTuple):
    action: Callable[[Store], Any]
    reply: asyncio.Future[Any]


_Order = _Append | _Ask


class LedgerThread:
    """Does on a thread of its own what is asked for, in the order of the calls.

    Orders of one turn of the event loop reach it together, and so do those that came while it was busy: appends
    that follow one another become one transaction. An order is done even where its caller stops waiting. A
    failure that is no ``ConductorError`` ends the thread; whoever waits, and whoever asks later, is told.

    Args:
        open_store: Opens the store; called on the thread. Its error is that of the first order.
    """

    def __init__(self, open_store: Callable[[], AbstractContextManager[Store]]) -> None:
        self._open_store = open_store
        self._loop = asyncio.get_running_loop()
        self._orders: list[_Order] = []
        self._inbox: queue.SimpleQueue[list[_Order]] = queue.SimpleQueue()
        self._taken: list[_Order] = []
        self._refusal: ConductorError | None = None
        self._ended = anyio.Event()
        # a daemon: a disk that never answers must not keep the process from ending
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    async def append(self, events: Sequence[bytes]) -> None:
        """Write encoded events; see ``Store.append``.

        Cancelling: they are written all the same.
        """
        reply = self._loop.create_future()
        self._place(_Append(events, reply))
        await reply

    async def ask(self, action: Callable[[Store], T]) -> T:
        """Have ``action`` done between two transactions and return its result.

        Cancelling: it is done all the same.

        Raises:
            ConductorError: Whatever the action raised.
            PortFailed: The thread has ended.
        """
        reply: asyncio.Future[T] = self._loop.create_future()
        self._place(_Ask(action, reply))
        return await reply

    async def close(self) -> None:
        """Take no more orders, do those that were given, and wait for the end.

        Cancelling: the thread does them all the same, and then ends.
        """
        self._hand_over()
        self._refusal = self._refusal or PortFailed("the ledger is closed")
        self._inbox.put([])
        await self._ended.wait()
        self._thread.join()

    def _place(self, order: _Order) -> None:
        self._orders.append(order)
        if len(self._orders) == 1:
            self._loop.call_soon(self._hand_over)

    def _hand_over(self) -> None:
        orders, self._orders = self._orders, []
        if self._refusal is None:
            self._inbox.put(orders)
        else:
            _settle([order.reply for order in orders], None, self._refusal)

    def _run(self) -> None:
        end: ConductorError = PortFailed("the ledger is closed")
        try:
            with self._open_store() as store:
                while self._refusal is None or not self._inbox.empty():
                    self._taken = self._take()
                    for _, orders in groupby(self._taken, key=type):
                        self._serve(store, tuple(orders))
        except ConductorError as exc:
            end = exc
        except BaseException as exc:  # noqa: ASYNC103 - a thread: nobody above it could catch it
            log.exception("ledger.failed")
            end = PortFailed(f"the ledger's thread failed: {type(exc).__name__}: {exc}")
        self._call_loop(self._end, end)

    def _take(self) -> list[_Order]:
        """Wait for orders and return all that are there."""
        orders = list(self._inbox.get())
        while not self._inbox.empty():
            orders += self._inbox.get()
        return orders

    def _serve(self, store: Store, orders: Sequence[_Order]) -> None:
        """Serve orders of one kind."""
        appends = [order for order in orders if isinstance(order, _Append)]
        if appends:
            events = [event for append in appends for event in append.events]
            self._answer([append.reply for append in appends], lambda: store.append(events))
        for order in orders:
            if isinstance(order, _Ask):
                self._answer([order.reply], lambda order=order: order.action(store))

    def _answer(self, replies: Sequence[asyncio.Future[Any]], action: Callable[[], Any]) -> None:
        try:
            value, error = action(), None
        except ConductorError as exc:
            value, error = None, exc
        self._call_loop(_settle, replies, value, error)

    def _call_loop(self, callback: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:  # the loop closed first: nobody waits any more
            log.warning("ledger.outlived_its_loop")

    def _end(self, error: ConductorError) -> None:
        self._refusal = self._refusal or error
        left = [*self._taken, *(self._take() if not self._inbox.empty() else ())]
        _settle([order.reply for order in left], None, error)
        self._ended.set()


def _settle(replies: Iterable[asyncio.Future[Any]], value: object, error: ConductorError | None) -> None:
    for reply in replies:
        if reply.done():  # its caller stopped waiting
            continue
        if error is None:
            reply.set_result(value)
        else:
            reply.set_exception(_fresh(error))


def _fresh(error: ConductorError) -> ConductorError:
    """Copy an error of the thread: each of those who wait raises one of their own."""
    fresh = type(error)(error.message)
    fresh.__cause__ = error
    return fresh
