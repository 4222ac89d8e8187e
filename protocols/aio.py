"""The two rules of cancellation that both sides keep, and the waits built on them.

1. A shield has a deadline (``bounded_shield``).
2. A cancellation that no scope asked for is an error, never an ending (``owned``, ``contained``).

anyio lets a foreign ``CancelledError`` cancel all siblings and then ends the task group *normally*
(measured with 4.16: a run came back as finished from 44 of 54 points). Hence no task is started bare.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar, TypeVarTuple

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint_if_cancelled

from protocols.errors import DeadlineExceeded, ForeignCancellation

T = TypeVar("T")
Args = TypeVarTuple("Args")


def clock() -> asyncio.AbstractEventLoop:
    """Return the loop that runs, for who asks it for the time or to be called at one; anyio knows no timer alone."""
    return asyncio.get_running_loop()


@contextmanager
def bounded_shield(deadline_s: float) -> Generator[anyio.CancelScope]:
    """Shield the block from scope cancellation for at most ``deadline_s`` seconds.

    A native ``Task.cancel`` goes through any shield: what is done inside must be safe to repeat.
    ``scope.cancelled_caught`` says afterwards whether the deadline cut the block.
    """
    with anyio.move_on_after(deadline_s, shield=True) as scope:
        yield scope


@contextmanager
def deadline(what: str, seconds: float) -> Generator[None]:
    """Bound a wait; unlike ``anyio.fail_after`` it never takes a ``TimeoutError`` from within for its own.

    Raises:
        DeadlineExceeded: The block was cut after ``seconds``; ``what`` names the wait.
    """
    with anyio.move_on_after(seconds) as scope:
        yield
    if scope.cancelled_caught:
        raise DeadlineExceeded(what=what, deadline_s=seconds)


@asynccontextmanager
async def open_tasks() -> AsyncGenerator[TaskGroup]:
    """Open the task group of a resource: an error of the block that uses the resource leaves it unchanged.

    A bare task group would wrap it. Errors of the tasks themselves come out as a group, as always.
    """
    block: BaseException | None = None
    try:
        async with anyio.create_task_group() as tasks:
            try:
                yield tasks
            except BaseException as exc:
                block = exc
                raise
    except BaseExceptionGroup as group:
        if group.exceptions != (block,):
            raise
    if block is not None:
        raise block


async def owned(name: str, run: Callable[[*Args], Awaitable[T]], *args: *Args) -> T:
    """Run the body of a task; turn a cancellation that no scope asked for into an error.

    Cancelling: passes through, when a scope around the task is cancelled.

    Raises:
        ForeignCancellation: The body ended in a cancellation that is nobody's.
    """
    try:
        return await run(*args)
    except anyio.get_cancelled_exc_class() as exc:
        await checkpoint_if_cancelled()  # noqa: ASYNC102 - raises where a scope asked for it, and never waits
        raise ForeignCancellation(task=name) from exc  # noqa: ASYNC104 - what nobody asked for is an error


class NoResult(Exception):
    """User code neither returned nor raised: it was cancelled from within."""


async def contained(function: Callable[[*Args], Awaitable[T]], *args: *Args) -> T:
    """Run user code in a one-task group of its own, which must store a result.

    Whatever user code does to its own task stays in that group: a leaked ``CancelledError``, a task
    that cancels itself, a ``SystemExit``.

    Cancelling: passes through to the user code.

    Raises:
        NoResult: The user code was cancelled, and not by the caller.
        Exception: Whatever the user code raised.
    """
    box: list[tuple[T | None, BaseException | None]] = []

    async def run() -> None:
        try:
            box.append((await function(*args), None))
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as exc:  # noqa: BLE001 - handed to the caller below, never dropped
            box.append((None, exc))

    async with anyio.create_task_group() as group:  # noqa: ASYNC112 - a task of its own is the point
        group.start_soon(run, name="user code")
    if not box:
        raise NoResult
    value, error = box[0]
    if error is not None:
        raise error
    return value  # pyright: ignore[reportReturnType] - None only where T admits it


class Doorbell:
    """Wakes everyone who waits, each time it rings.

    Check the condition, then wait, without an ``await`` between the two: no ring is lost. An
    ``asyncio.Condition`` spins under anyio's level cancellation.
    """

    def __init__(self) -> None:
        self._event: anyio.Event | None = None  # made by who waits: most rings wake nobody

    def ring(self) -> None:
        """Wake all who wait now."""
        if self._event is not None:
            self._event.set()
            self._event = None

    async def wait(self) -> None:
        """Wait for the next ring."""
        if self._event is None:
            self._event = anyio.Event()
        await self._event.wait()
