"""Several calls at once, of which each has its own fate."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import anyio

from backends.engines._http.connection import ServerRefused
from protocols.aio import owned
from protocols.errors import ConductorError

T = TypeVar("T")


async def together(what: str, calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """Make all calls at once, and wait for all, also where one fails; return what each gave, in order.

    Cancelling: cancels all of them.

    Raises:
        ServerRefused, ConductorError: The first failure, in the order of the calls.
    """
    answers: dict[int, T] = {}
    failures: dict[int, Exception] = {}

    async def one(number: int) -> None:
        try:
            answers[number] = await calls[number]()
        except (ServerRefused, ConductorError) as exc:
            failures[number] = exc

    async with anyio.create_task_group() as tasks:
        for number in range(len(calls)):
            tasks.start_soon(owned, what, one, number, name=f"{what} {number}")
    if failures:
        raise failures[min(failures)]
    return [answers[number] for number in range(len(calls))]
