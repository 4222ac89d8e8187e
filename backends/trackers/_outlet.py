"""What stands between a run and a library that takes metrics: a bounded queue, and a thread that alone waits for it.

A library that is down, slow, hangs or raises stops and slows nothing: it is warned of once, and what it did not take
lies in ``undelivered-<kind>.jsonl`` in the run's folder, each record with the reason.
"""

import queue
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Protocol

import anyio
import anyio.from_thread
import anyio.to_thread
import msgspec
import structlog
from anyio.lowlevel import EventLoopToken, checkpoint, current_token

from protocols.messages import Message
from protocols.tracking import StepRecord, TrackerPort

log = structlog.get_logger()

_KEPT = 1_000  # records that wait for a library that is slow
_CLOSE_S = 10.0
_QUIET_S = 1.0  # until people are told what is waited for
_FULL = "it takes records more slowly than steps are made"
_CLOSED = "it did not take it before the run ended"


class Outlet(Protocol):
    """A library that takes metrics. All methods may block and raise anything; one thread calls them."""

    def write(self, record: StepRecord) -> None:
        """Take one record."""
        ...

    def rewind(self, step: int) -> None:
        """Take back what comes after ``step``, where that is possible."""
        ...

    def close(self) -> None:
        """Hand over what is still on its way."""
        ...


class Undelivered(Message, frozen=True, kw_only=True):
    """A line of the file: a record that was not taken, and why."""

    step: int
    metrics: dict[str, float]
    error: str


class _Rewind(Message, frozen=True, kw_only=True):
    step: int


class OutletTracker:
    """Takes records at once; a thread of its own brings them to an outlet.

    Args:
        kind: Of the tracker.
        connect: Makes the outlet, in that thread; called again after it failed.
        folder: Where undelivered records are written; None: nowhere.
        kept: Records that may wait.
    """

    def __init__(self, kind: str, connect: Callable[[], Outlet], folder: Path | None, *, kept: int = _KEPT) -> None:
        self._kind = kind
        self._connect = connect
        self._file = None if folder is None else folder / f"undelivered-{kind}.jsonl"
        self._queue: queue.Queue[StepRecord | _Rewind | None] = queue.Queue(kept)
        self._over = threading.Event()
        self._refused: list[Undelivered] = []
        self._warned = False

    async def log(self, record: StepRecord) -> None:
        """Take one record; see ``TrackerPort.log``."""
        await checkpoint()
        try:
            self._queue.put_nowait(record)
        except queue.Full:
            self._warn(_FULL)
            self._refused.append(_undelivered(record, _FULL))
            del self._refused[:-_KEPT]

    async def rewind(self, step: int) -> int:
        """Pass it on; what was delivered up to ``step`` counts as held; see ``TrackerPort.rewind``."""
        await checkpoint()
        with suppress(queue.Full):
            self._queue.put_nowait(_Rewind(step=step))
        return step

    def run(self, token: EventLoopToken, ended: anyio.Event) -> None:
        """Be the thread: deliver until ``finish``, then set ``ended`` on the loop of ``token``."""
        outlet: Outlet | None = None
        while (item := self._next()) is not None:
            try:
                outlet = outlet or self._connect()
                _hand_over(outlet, item)
            except Exception as exc:  # noqa: BLE001 - a library's error is told of, and never the run's
                self._failed(item, f"{type(exc).__name__}: {exc}")
        if outlet is not None:
            try:
                outlet.close()
            except Exception as exc:  # noqa: BLE001 - as above
                self._warn(f"{type(exc).__name__}: {exc}")
        with suppress(RuntimeError):  # the loop has ended without waiting
            anyio.from_thread.run_sync(ended.set, token=token)

    def finish(self) -> None:
        """Let the thread end when it has delivered what waits."""
        self._over.set()
        with suppress(queue.Full):
            self._queue.put_nowait(None)

    def leave(self) -> None:
        """Write down what was refused, and what still waits for a library that hangs."""
        with suppress(queue.Empty):
            while True:
                item = self._queue.get_nowait()
                if isinstance(item, StepRecord):
                    self._refused.append(_undelivered(item, _CLOSED))
        if self._refused:
            self._warn(self._refused[0].error)
        self._write(self._refused)
        self._refused = []

    def _next(self) -> StepRecord | _Rewind | None:
        while True:
            try:
                return self._queue.get(timeout=1.0)
            except queue.Empty:
                if self._over.is_set():  # the queue was full when it ended
                    return None

    def _failed(self, item: StepRecord | _Rewind, why: str) -> None:
        self._warn(why)
        if isinstance(item, StepRecord):
            self._write([_undelivered(item, why)])

    def _warn(self, why: str) -> None:
        if not self._warned:
            self._warned = True
            log.warning("tracker.failed", tracker=self._kind, error=why, undelivered=str(self._file or "nowhere"))

    def _write(self, lines: list[Undelivered]) -> None:
        if self._file is None or not lines:
            return
        with suppress(OSError), self._file.open("ab") as file:
            file.write(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))


def _hand_over(outlet: Outlet, item: StepRecord | _Rewind) -> None:
    if isinstance(item, StepRecord):
        outlet.write(item)
    else:
        outlet.rewind(item.step)


def _undelivered(record: StepRecord, why: str) -> Undelivered:
    return Undelivered(step=record.step, metrics=record.metrics, error=why)


@asynccontextmanager
async def open_outlet(
    kind: str, connect: Callable[[], Outlet], run_dir: str | None, *, close_s: float = _CLOSE_S
) -> AsyncGenerator[OutletTracker]:
    """Open a tracker over an outlet; at the end of the block it is waited for, for about ``close_s`` seconds at most.

    Cancelling: that wait ends, where the block has ended well; what was not delivered is written to the file.
    """
    tracker = OutletTracker(kind, connect, None if run_dir is None else Path(run_dir))
    ended = anyio.Event()
    threading.Thread(
        target=tracker.run, args=(current_token(), ended), name=f"tracker {kind}", daemon=True
    ).start()  # a daemon: nothing ends a library that hangs
    waited = False
    try:
        yield tracker
        waited = True
        tracker.finish()
        await _end_of(kind, ended, close_s)
    finally:
        if not waited:
            tracker.finish()
            with anyio.move_on_after(close_s, shield=True):
                await _end_of(kind, ended, close_s)
        with anyio.move_on_after(close_s, shield=True):
            await anyio.to_thread.run_sync(tracker.leave, abandon_on_cancel=True)


async def _end_of(kind: str, ended: anyio.Event, close_s: float) -> None:
    """Wait until its thread has delivered everything, for so long at most; say so when it takes long."""
    with anyio.move_on_after(min(_QUIET_S, close_s)):
        await ended.wait()
        return
    log.warning("tracker.awaited", tracker=kind, at_most_s=close_s)
    with anyio.move_on_after(close_s):
        await ended.wait()


_: type[TrackerPort] = OutletTracker
