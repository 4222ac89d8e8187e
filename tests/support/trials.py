"""Runs of one program, each on a virtual-time loop of its own, and one for each place where it may fail."""

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import anyio

from backends.sim.sites import waiting_tasks
from backends.sim.virtual_time import Stuck, VirtualTimeLoop

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Outcome(Generic[T]):
    """How a program ended.

    Attributes:
        value: What it returned; None where it did not.
        error: What it raised, a ``CancelledError`` included; None where it did not.
        cancelled: Whether the scope around it had been cancelled and took the cancellation back.
        seconds: Virtual time at its end.
        left: ``name at site`` of every task that was still alive then.
    """

    value: T | None
    error: BaseException | None
    cancelled: bool
    seconds: float
    left: tuple[str, ...]


class Trial(NamedTuple, Generic[T]):
    """One run, disturbed in one place.

    Attributes:
        number: Of the place, from 1, in the order of an undisturbed run.
        site: What the place is called.
        outcome: How the run ended.
    """

    number: int
    site: str
    outcome: Outcome[T]


class TasksLeft(AssertionError):
    """Tasks outlived the program that started them."""


class NotRepeatable(AssertionError):
    """The program took another way than in the run before."""


def run_program(
    program: Callable[[anyio.CancelScope], Awaitable[T]], loop_factory: Callable[[], VirtualTimeLoop]
) -> Outcome[T]:
    """Run ``program``, which is given the scope around it, and tell how it ended.

    Raises:
        Stuck: It did not end.
    """

    async def program_task(scope: anyio.CancelScope) -> T | None:
        with scope:
            return await program(scope)

    async def watch() -> Outcome[T]:
        scope = anyio.CancelScope()
        task = asyncio.create_task(program_task(scope), name="main")
        await asyncio.wait({task})
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        return Outcome(
            value=task.result() if error is None else None,
            error=error,
            cancelled=scope.cancelled_caught,
            seconds=anyio.current_time(),
            left=waiting_tasks(asyncio.all_tasks() - {asyncio.current_task()}),
        )

    return anyio.run(watch, backend_options={"loop_factory": loop_factory})


def each_place(run: Callable[[int | None], tuple[Sequence[str], Outcome[T]]]) -> Generator[Trial[T]]:
    """Run once undisturbed to find the places, then once for each of them.

    Args:
        run: Given the number of a place to disturb, from 1, or None; returns the sites of the places that
            were reached, in order, and the outcome.

    Raises:
        BaseException: The undisturbed run failed.
        TasksLeft: A run left tasks alive.
        NotRepeatable: A run went another way before it was disturbed.
        Stuck: A run did not end; a note names the place.
    """
    sites, outcome = run(None)
    if outcome.error is not None:
        raise outcome.error
    for number, site in enumerate(sites, 1):
        place = f"disturbed in place {number} of {len(sites)}, {site}"
        try:
            reached, outcome = run(number)
        except Stuck as exc:
            exc.add_note(place)
            raise
        if list(reached[:number]) != list(sites[:number]):
            raise NotRepeatable(f"{place}: came to {reached[number - 1 : number]}")
        if outcome.left:
            raise TasksLeft(f"{place}: {'; '.join(outcome.left)}")
        yield Trial(number, site, outcome)
