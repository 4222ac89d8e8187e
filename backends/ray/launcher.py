"""Hosts each workload in an actor of its own, and carries the calls."""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from itertools import count
from typing import Any

import ray
from anyio.abc import TaskGroup

from backends._workers import Workers, open_workers
from backends.ray.actor import WorkloadActor
from backends.ray.messages import Asked, LaunchOrder
from backends.ray.notices import Notices
from backends.ray.placement import Place, RayPlacement
from backends.ray.session import Session
from backends.ray.worker import RayWorker
from protocols.aio import owned
from protocols.backend import LauncherPort, WorkloadSpec

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


class RayLauncher(Workers[RayWorker]):
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
        super().__init__(tasks, gone_s=manner.patience_s + _MARGIN_S)
        self._session = session
        self._placement = placement
        self._directory = directory
        self._manner = manner
        self._numbers = count()
        self._notices = Notices()
        tasks.start_soon(owned, "notices", self._notices.run, name="notices")

    async def launch(self, spec: WorkloadSpec) -> None:
        """Start an actor and open the workload in it; where that fails or is cancelled, nothing remains.

        Raises:
            UserError: Its options are wrong.
            PortFailed: It could not be opened.
            Transient: Its node is gone, and no other has room now.
        """
        place = await self._placement.place(spec.reservation_id)
        self._expect(spec.worker_id)
        worker = self._start(spec, place)
        await self._host(spec.worker_id, worker, worker.open)

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
            order, handle, self._session, self._notices, ports,
            heartbeat_s=manner.heartbeat_s, patience_s=manner.patience_s,
        )  # fmt: skip


def open_launcher(
    session: Session, placement: RayPlacement, directory: Any, manner: Manner
) -> AbstractAsyncContextManager[RayLauncher]:
    """Open a launcher; the workers that still run when the block ends are ended."""
    return open_workers(lambda tasks: RayLauncher(tasks, session, placement, directory, manner))


_: type[LauncherPort] = RayLauncher
