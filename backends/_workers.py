"""Workers that are processes of their own, from their launch to their end, wherever they run."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Generic, Protocol, TypeVar

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from backends._reachable import Reachable
from protocols.aio import open_tasks
from protocols.backend import WorkerState
from protocols.errors import InvariantError, PortFailed, WorkerLost
from protocols.messages import WorkerId


class Worker(Protocol):
    """Watches over one process."""

    @property
    def state(self) -> WorkerState:
        """Whether it runs, as far as is known."""
        ...

    async def run(self) -> None:
        """Watch over it until it has ended, shielded until ``expose``; nothing of it runs on return."""
        ...

    async def call(self, method: str, args: tuple[Any, ...]) -> Any:
        """Call a method of its workload; before this first yields it is on its way, or waits in line."""
        ...

    async def end(self) -> None:
        """End its calls, let it close, and end it by force when that takes too long. Idempotent."""
        ...

    def expose(self) -> None:
        """Let the cancellation of those around it reach it: it is killed."""
        ...


W = TypeVar("W", bound=Worker)


class Workers(Reachable, Generic[W]):
    """The half of a launcher that begins where a process was started.

    Args:
        tasks: Owns the tasks that watch over them.
        gone_s: Seconds within which one that is to end is gone, whatever it does.
    """

    def __init__(self, tasks: TaskGroup, *, gone_s: float) -> None:
        super().__init__()
        self._tasks = tasks
        self._gone_s = gone_s
        self._workers: dict[WorkerId, W] = {}

    def _expect(self, worker_id: WorkerId) -> None:
        """Refuse a name that is taken."""
        if worker_id in self._workers:
            raise InvariantError(f"worker {worker_id} was launched before and not killed")

    async def _host(self, worker_id: WorkerId, worker: W, opening: Callable[[], Awaitable[None]]) -> None:
        """Watch over a process that was started, and wait for ``opening``; where that fails, nothing of it remains."""
        self._workers[worker_id] = worker
        self._tasks.start_soon(worker.run, name=f"worker {worker_id}")
        try:
            await opening()
        except BaseException:
            with anyio.move_on_after(self._gone_s, shield=True):
                await self.kill(worker_id)
            raise

    async def call(self, worker_id: WorkerId, method: str, args: tuple[Any, ...]) -> Any:
        """Call a workload's method; see ``LauncherPort.call``. It ends when the process does.

        Before this first yields it is on its way, or waits in line behind others; an abort never waits.
        """
        worker = self._workers.get(worker_id)
        if worker is None:
            await checkpoint()
            raise WorkerLost(worker=worker_id, cause="no such worker")
        return await worker.call(method, args)

    async def poll(self) -> dict[WorkerId, WorkerState]:
        """Return every worker that was launched and not killed."""
        await checkpoint()
        return {name: worker.state for name, worker in self._workers.items()}

    async def kill(self, worker_id: WorkerId) -> None:
        """End a worker: it is told to close, and killed when it takes too long; see ``LauncherPort.kill``.

        Cancelling: it goes on closing; kill it again to wait for its end.

        Raises:
            PortFailed: The system does not let go of it.
        """
        await checkpoint()
        worker = self._workers.get(worker_id)
        if worker is not None:
            await worker.end()
            if self._workers.get(worker_id) is worker:  # else another call did, and it may be launched again
                del self._workers[worker_id]

    @asynccontextmanager
    async def ended_behind(self) -> AsyncGenerator[None]:
        """End the workers that still run when the block ends, all at once; what does not end is killed."""
        try:
            yield
        finally:
            try:
                with anyio.move_on_after(self._gone_s, shield=True):
                    await self._end_all()
            finally:
                for worker in self._workers.values():
                    worker.expose()
                self._tasks.cancel_scope.cancel()

    async def _end_all(self) -> None:
        async def end(worker_id: WorkerId) -> None:
            with suppress(PortFailed):  # the error that ends the block is worth more
                await self.kill(worker_id)

        async with anyio.create_task_group() as tasks:
            for worker_id in self._workers:
                tasks.start_soon(end, worker_id, name=f"end of {worker_id}")


L = TypeVar("L", bound=Workers[Any])


@asynccontextmanager
async def open_workers(make: Callable[[TaskGroup], L]) -> AsyncGenerator[L]:
    """Open a launcher, given what owns its tasks; the workers that still run when the block ends are ended."""
    async with open_tasks() as tasks:
        launcher = make(tasks)
        async with launcher.ended_behind():
            yield launcher
