"""Calls rewards on the event loop: async ones, and those that the job declares cheap."""

from collections.abc import Awaitable, Callable
from typing import TypeVar, TypeVarTuple

import anyio
from anyio.lowlevel import checkpoint

from backends.graders._reward import Reward, Task, fault
from protocols.aio import NoResult, contained, owned
from protocols.grading import Grade, GradeFault

T = TypeVar("T")
Args = TypeVarTuple("Args")


class OnLoop:
    """Runs user code contained, so that what it does to its task stays there.

    Async calls each have a task of their own, and a deadline. Those that are not async await nothing, so nothing can
    come between two of them: the calls of one group share a task. None of them can be cut: while one hangs, the whole
    run stands still.

    Args:
        reward: The user's function.
        deadline_s: For one completion of an async function. It starts when the call starts.
        concurrency: Async calls at a time.
    """

    def __init__(self, reward: Reward, *, deadline_s: float, concurrency: int) -> None:
        self._reward = reward
        self._deadline_s = deadline_s
        self._slots = anyio.Semaphore(concurrency)

    async def grade(self, task: Task) -> tuple[Grade | GradeFault, ...]:
        """Grade every completion, async ones at the same time.

        Cancelling: reaches the user's code at its next await.
        """
        await checkpoint()
        if not self._reward.is_async:
            return await _or_none(self._call_each, task) or (_CANCELLED,) * len(task.completions)
        grades: dict[int, Grade | GradeFault] = {}
        async with anyio.create_task_group() as group:
            for index in range(len(task.completions)):
                name = f"reward {index}"
                group.start_soon(owned, name, self._into, grades, task, index, name=name)
        return tuple(grades[index] for index in range(len(task.completions)))

    async def _call_each(self, task: Task) -> tuple[Grade | GradeFault, ...]:
        return tuple(self._reward.grade(task, index) for index in range(len(task.completions)))

    async def _into(self, grades: dict[int, Grade | GradeFault], task: Task, index: int) -> None:
        async with self._slots:
            grades[index] = await self._one(task, index)

    async def _one(self, task: Task, index: int) -> Grade | GradeFault:
        with anyio.move_on_after(self._deadline_s):
            return await _or_none(self._reward.grade_async, task, index) or _CANCELLED
        return fault("timed_out", f"it did not return within {self._deadline_s:g} s")


_CANCELLED = fault("cancelled", "it was cancelled, although nobody had asked for that")


async def _or_none(call: Callable[[*Args], Awaitable[T]], *args: *Args) -> T | None:
    """Run user code contained; None: it was cancelled, and not by us."""
    try:
        return await contained(call, *args)
    except NoResult:
        return None
