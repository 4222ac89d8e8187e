"""Disturb a program at exactly one of its awaits, over all of its tasks, and at each of them in turn."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, TypeVar

import anyio

from backends.sim.sites import awaiting, site
from backends.sim.virtual_time import HORIZON_S, VirtualTimeLoop
from tests.support.trials import Outcome, Trial, each_place, run_program

T = TypeVar("T")

Injection = Literal["cancel_task", "cancel_main", "cancel_scope", "fail"]
"""What happens at the await.

``cancel_task``: ``Task.cancel`` of the task that waits there, as foreign code does it.
``cancel_main``: ``Task.cancel`` of the task that runs the program, as a user's time-out does it.
``cancel_scope``: The anyio scope around the program is cancelled.
``fail``: The await raises ``Planted`` in place of its result.
"""

Act = Callable[[], BaseException | None]
"""Called inside the task that is about to wait; an error it returns is raised at the await."""

_CANNOT_FAIL = ("__aexit__", "cancel_shielded_checkpoint")


class Planted(Exception):
    """The planted failure."""


def may_fail(coroutine: Any) -> bool:
    """Return whether what a suspended coroutine awaits could raise at all.

    anyio relies on it that two of its own awaits only ever end or are cancelled: a task group's wait for
    its children, and the checkpoint after a lock is taken. An error there would break anyio, not the program.
    """
    return not any(
        frame.f_code.co_name in _CANNOT_FAIL and frame.f_code.co_filename.endswith("/anyio/_backends/_asyncio.py")
        for frame in awaiting(coroutine)
    )


def anywhere(coroutine: Any) -> bool:
    """Count every suspension."""
    return True


class AwaitProbe:
    """A task factory that counts every suspension of every task, and acts at one of them.

    Args:
        at: Number of the suspension, from 1; None only counts.
        counts: Whether the suspension of a coroutine counts.

    Attributes:
        sites: ``task at file:line in function`` of every suspension that counted, in order.
    """

    def __init__(self, at: int | None, *, counts: Callable[[Any], bool] = anywhere) -> None:
        self._at = at
        self._counts = counts
        self._act: Act | None = None
        self.sites: list[str] = []

    @contextmanager
    def acting(self, act: Act) -> Generator[None]:
        """Count while the block runs, and do ``act`` when it is time."""
        self._act = act
        try:
            yield
        finally:
            self._act = None

    def __call__(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        """Start a task under the probe."""
        task = asyncio.Task(_drive(self, coroutine), loop=loop, **options)
        task.add_done_callback(lambda _: coroutine.close())  # one that is cancelled before its first step never runs
        return task

    def suspended(self, coroutine: Any) -> BaseException | None:
        """Take note of a suspension; returns what is to be raised there."""
        task = asyncio.current_task()
        if self._act is None or task is None or not self._counts(coroutine):
            return None
        self.sites.append(f"{task.get_name()} at {site(coroutine)}")
        return self._act() if len(self.sites) == self._at else None


async def _drive(probe: AwaitProbe, coroutine: Coroutine[Any, Any, T]) -> T:
    """Await the driver: anyio asks a task for the state of its coroutine, so the task's own must be a native one."""
    return await _Driver(probe, coroutine)


class _Driver:
    """Stands between a task and its coroutine, and sees what it yields.

    Attributes:
        cr_await: The coroutine, for those who follow the chain of awaits.
    """

    def __init__(self, probe: AwaitProbe, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._probe = probe
        self.cr_await = coroutine

    def __await__(self) -> "Generator[Any, Any, Any]":
        return self  # pyright: ignore[reportReturnType] - it has a generator's methods

    def __iter__(self) -> "_Driver":
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        """Go on to the next suspension."""
        return self._past_planted(self.cr_await.send(value))

    def throw(self, *error: Any) -> Any:
        """Raise inside, and go on to the next suspension."""
        return self._past_planted(self.cr_await.throw(*error))

    def close(self) -> None:
        """Close the coroutine."""
        self.cr_await.close()

    def _past_planted(self, waited: Any) -> Any:
        while (planted := self._probe.suspended(self.cr_await)) is not None:
            waited = self.cr_await.throw(planted)
        return waited


def enumerate_awaits(
    program: Callable[[], Awaitable[T]],
    injection: Injection,
    *,
    seed: int | None = None,
    horizon_s: float = HORIZON_S,
) -> Generator[Trial[T]]:
    """Run ``program`` undisturbed, then once for each of its awaits, disturbed there.

    Args:
        program: Called anew for each run; it makes all of its state itself.
        injection: What happens at the await.
        seed: Of the schedule of all runs.
        horizon_s: Virtual seconds that one run may take.

    Yields:
        Number and site of the await, and how the run ended.

    Raises:
        Stuck, TasksLeft, NotRepeatable: As ``each_place`` says.
    """

    def run(at: int | None) -> tuple[list[str], Outcome[T]]:
        probe = AwaitProbe(at, counts=may_fail if injection == "fail" else anywhere)

        def make_loop() -> VirtualTimeLoop:
            loop = VirtualTimeLoop(seed, horizon_s=horizon_s)
            loop.set_task_factory(probe)
            return loop

        async def probed(scope: anyio.CancelScope) -> T:
            with probe.acting(_act(injection, scope)):
                return await program()

        return probe.sites, run_program(probed, make_loop)

    return each_place(run)


def _act(injection: Injection, scope: anyio.CancelScope) -> Act:
    match injection:
        case "cancel_task":
            return lambda: _cancel(asyncio.current_task())
        case "cancel_main":
            return partial(_cancel, asyncio.current_task())
        case "cancel_scope":
            return scope.cancel
        case "fail":
            return lambda: Planted("at this await")


def _cancel(task: asyncio.Task[Any] | None) -> None:
    assert task is not None
    task.cancel()
