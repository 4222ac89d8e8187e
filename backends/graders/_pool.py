"""Calls rewards in worker processes: a hang is cut, a crash costs one completion, the loop stays free."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio

from backends.graders._process import KILL_DEADLINE_S, ProcessEnded, RewardProcess, start_process
from backends.graders._reward import Task
from protocols.grading import Grade, GradeFault


class RewardPool:
    """Up to ``size`` processes; each grades one task at a time, and is replaced when it does not survive.

    Args:
        function: The user's, as named in the job.
        job_dir: Folder in which its file may lie.
        size: Most processes at a time.
        deadline_s: For one completion.
    """

    def __init__(self, function: str, job_dir: str, *, size: int, deadline_s: float) -> None:
        self._function = function
        self._job_dir = job_dir
        self._deadline_s = deadline_s
        self._slots = anyio.Semaphore(size)
        self._idle: list[RewardProcess] = []
        self._started: dict[int, RewardProcess] = {}

    @property
    def pids(self) -> frozenset[int]:
        """Ids of the processes that were started and not killed."""
        return frozenset(self._started)

    async def grade(self, task: Task) -> tuple[Grade | GradeFault, ...]:
        """Grade every completion. One that its process does not survive is a fault; the rest goes to the next.

        Cancelling: the process is killed.

        Raises:
            Transient: No process can be started.
        """
        grades: list[Grade | GradeFault] = []
        async with self._slots:
            while len(grades) < len(task.completions):
                try:
                    await self._grade_on(task, grades)
                except ProcessEnded as ended:
                    grades.append(GradeFault(kind=ended.kind, detail=ended.detail))
        return tuple(grades)

    async def _grade_on(self, task: Task, grades: list[Grade | GradeFault]) -> None:
        rest = task.completions[len(grades) :]
        async with self._lent() as process:
            await process.ask(Task(prompt=task.prompt, fields=task.fields, completions=rest))
            for _ in rest:
                grades.append(await process.answer(self._deadline_s))  # noqa: PERF401 - kept when the next one fails

    @asynccontextmanager
    async def _lent(self) -> AsyncGenerator[RewardProcess]:
        process = await self._take()
        try:
            yield process
        except BaseException:
            with anyio.move_on_after(KILL_DEADLINE_S, shield=True):
                await self._kill(process)
            raise
        self._idle.append(process)

    async def _take(self) -> RewardProcess:
        while self._idle:
            process = self._idle.pop()
            if process.alive:
                return process
            await self._kill(process)
        process = await start_process(self._function, self._job_dir)
        self._started[process.pid] = process
        return process

    async def _kill(self, process: RewardProcess) -> None:
        process.kill()
        await process.reap()
        self._started.pop(process.pid, None)

    async def warm_up(self) -> None:
        """Start the first process; the others start when they are needed.

        Raises:
            UserError: The function cannot be loaded.
            Transient: The process does not start.
        """
        async with self._slots:
            self._idle.append(await self._take())

    async def close(self) -> None:
        """Kill every process."""
        for process in self._started.values():
            process.kill()
        for process in tuple(self._started.values()):
            await self._kill(process)


@asynccontextmanager
async def open_pool(function: str, job_dir: str, *, size: int, deadline_s: float) -> AsyncGenerator[RewardPool]:
    """Open a pool with one process started; none runs when the block ends."""
    pool = RewardPool(function, job_dir, size=size, deadline_s=deadline_s)
    try:
        await pool.warm_up()
        yield pool
    finally:
        with anyio.move_on_after(KILL_DEADLINE_S, shield=True):
            await pool.close()
