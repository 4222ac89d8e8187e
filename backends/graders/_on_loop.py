"""Calls rewards on the event loop: async ones, and those that the job declares cheap."""

from functools import partial

import anyio
from anyio.lowlevel import checkpoint

from backends.graders._reward import Reward, Task, fault
from protocols.aio import NoResult, contained, owned
from protocols.grading import Grade, GradeFault


class OnLoop:
    """Runs every call contained, so that what user code does to its task stays there.

    A call that is not async cannot be cut: while it hangs, the whole run stands still.

    Args:
        reward: The user's function.
        deadline_s: For one completion. It starts when the call starts.
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
        grades: dict[int, Grade | GradeFault] = {}
        if not self._reward.is_async:
            for index in range(len(task.completions)):
                grades[index] = await self._one(task, index)
        else:
            async with anyio.create_task_group() as group:
                for index in range(len(task.completions)):
                    name = f"reward {index}"
                    group.start_soon(owned, name, partial(self._into, grades, task, index), name=name)
        return tuple(grades[index] for index in range(len(task.completions)))

    async def _into(self, grades: dict[int, Grade | GradeFault], task: Task, index: int) -> None:
        async with self._slots:
            grades[index] = await self._one(task, index)

    async def _one(self, task: Task, index: int) -> Grade | GradeFault:
        with anyio.move_on_after(self._deadline_s):
            try:
                return await contained(self._call, task, index)
            except NoResult:
                return fault("cancelled", "it was cancelled, although nobody had asked for that")
        return fault("timed_out", f"it did not return within {self._deadline_s:g} s")

    async def _call(self, task: Task, index: int) -> Grade | GradeFault:
        if self._reward.is_async:
            return await self._reward.grade_async(task, index)
        return self._reward.grade(task, index)
