"""Hosts each workload in an actor of its own, and carries the calls."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import count
from typing import Any

import anyio
import ray
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from backends._reachable import Reachable
from backends.ray.actor import WorkloadActor
from backends.ray.messages import Asked, LaunchOrder
from backends.ray.placement import Place, RayPlacement
from backends.ray.session import Session
from backends.ray.worker import RayWorker
from protocols.aio import open_tasks
from protocols.backend import LauncherPort, WorkerState, WorkloadSpec
from protocols.errors import InvariantError, PortFailed, WorkerLost
from protocols.messages import WorkerId

_MARGIN_S = 25.0  # beyond the patience: what the system may take to end a killed process
_CALLS = 10_000  # at once in one actor; what is beyond waits, and an abort with it
_BEATS = 6  # within a heartbeat: twice as often as the controller asks


@dataclass(frozen=True, kw_only=True)
class Manner:
    """How workers are treated.

    Attributes:
        heartbeat_s: For how long one may be silent.
        patience_s: How long one may take to close.
        compute_processes: How many share the CPUs of a node, where they reserved none.
    """

    heartbeat_s: float
    patience_s: float
    compute_processes: int


class RayLauncher(Reachable):
    """Starts an actor for each workload, where it was reserved.

    Args:
        tasks: Owns the tasks that watch over them.
        session: The connection.
        placement: Knows the places.
        directory: Handle of the payload directory.
        manner: How they are treated.
    """

    def __init__(
        self, tasks: TaskGroup, session: Session, placement: RayPlacement, directory: Any, manner: Manner
    ) -> None:
        super().__init__()
        self._tasks = tasks
        self._session = session
        self._placement = placement
        self._directory = directory
        self._manner = manner
        self._numbers = count()
        self._workers: dict[WorkerId, RayWorker] = {}

    async def launch(self, spec: WorkloadSpec) -> None:
        """Start an actor and open the workload in it; where that fails or is cancelled, nothing remains.

        Raises:
            UserError: Its options are wrong.
            PortFailed: It could not be opened.
            Transient: Its node is gone, and no other has room now.
        """
        place = await self._placement.place(spec.reservation_id)
        if spec.worker_id in self._workers:
            raise InvariantError(f"worker {spec.worker_id} was launched before and not killed")
        worker = self._workers[spec.worker_id] = self._start(spec, place)
        self._tasks.start_soon(worker.run, name=f"worker {spec.worker_id}")
        try:
            await worker.open()
        except BaseException:
            with anyio.move_on_after(self._manner.patience_s + _MARGIN_S, shield=True):
                await self.kill(spec.worker_id)
            raise

    def _start(self, spec: WorkloadSpec, place: Place) -> RayWorker:
        manner = self._manner
        served: dict[Asked, Any] = {"inference": self.inference, "roles": self.roles}
        ports: dict[Asked, Any] = {asked: port for asked, port in served.items() if port is not None}
        order = LaunchOrder(
            spec=spec,
            threads=int(place.cpus) or max(1, int(place.node_cpus) // manner.compute_processes),
            asked=tuple(ports),
            mark=f"{self._session.mark}{next(self._numbers)}:",
            beat_s=manner.heartbeat_s / _BEATS,
        )
        actor = ray.remote(WorkloadActor).options(
            num_cpus=0,  # what it needs is reserved
            max_restarts=0,
            max_concurrency=_CALLS,
            scheduling_strategy=place.strategy,
        )
        handle = actor.remote(order, self._directory)
        return RayWorker(
            order, handle, self._session, ports,
            heartbeat_s=manner.heartbeat_s, patience_s=manner.patience_s,
        )  # fmt: skip

    async def call(self, worker_id: WorkerId, method: str, args: tuple[Any, ...]) -> Any:
        """Call a workload's method; see ``LauncherPort.call``. It ends when the process does.

        It is on its way before this first yields: an abort is submitted before anything is awaited.
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

    async def end_all(self) -> None:
        """End every worker, all at once."""

        async def end(worker_id: WorkerId) -> None:
            with suppress(PortFailed):  # the error that ends the block is worth more
                await self.kill(worker_id)

        async with anyio.create_task_group() as tasks:
            for worker_id in self._workers:
                tasks.start_soon(end, worker_id, name=f"end of {worker_id}")

    def expose(self) -> None:
        """End the shield of every worker."""
        for worker in self._workers.values():
            worker.expose()


@asynccontextmanager
async def open_launcher(
    session: Session, placement: RayPlacement, directory: Any, manner: Manner
) -> AsyncGenerator[RayLauncher]:
    """Open a launcher; the workers that still run when the block ends are ended."""
    async with open_tasks() as tasks:
        launcher = RayLauncher(tasks, session, placement, directory, manner)
        try:
            yield launcher
        finally:
            try:
                with anyio.move_on_after(manner.patience_s + _MARGIN_S, shield=True):
                    await launcher.end_all()
            finally:
                launcher.expose()
                tasks.cancel_scope.cancel()


_: type[LauncherPort] = RayLauncher
