"""One role's workers: launched, and ended in the reverse order, whatever happens."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from conductor.fleet.undo import undo_each, undoing
from protocols.backend import LauncherPort, WorkloadSpec
from protocols.fleet import Vertex
from protocols.lifecycle import LifecyclePort
from protocols.messages import WorkerId
from protocols.sections import Site


def spec_of(vertex: Vertex, site: Site) -> WorkloadSpec:
    """Return what a launcher is told of a planned worker."""
    return WorkloadSpec(
        worker_id=vertex.name,
        section=vertex.section,
        adapter=vertex.adapter,
        site=site,
        reservation_id=vertex.bundle,
        cpus=vertex.cpus,
        environment=vertex.environment,
        devices=vertex.devices,
        ranks=vertex.ranks,
    )


class WorkerGroup:
    """The face of a started group (``LifecyclePort``)."""

    def __init__(self, members: tuple[WorkerId, ...], launcher: LauncherPort) -> None:
        self.members = members
        self._launcher = launcher

    async def ready(self) -> frozenset[WorkerId]:
        """Return the members that run."""
        states = await self._launcher.poll()
        return frozenset(member for member in self.members if states.get(member) == "running")

    async def missing(self) -> frozenset[WorkerId]:
        """Return the members that should run and do not."""
        return frozenset(self.members) - await self.ready()

    async def probe(self, member: WorkerId) -> bool:
        """Return whether one member runs."""
        return member in await self.ready()

    async def stop(self) -> None:
        """End every member, all of them even if one fails.

        Raises:
            PortFailed: Some could not be ended; it names them.
        """
        await undo_each(self.members[::-1], lambda member: self._launcher.kill(WorkerId(member)))


_: type[LifecyclePort] = WorkerGroup


@asynccontextmanager
async def open_group(
    vertices: Sequence[Vertex], launcher: LauncherPort, site: Site, *, stop_s: float
) -> AsyncGenerator[WorkerGroup]:
    """Launch every member; on the way out, and on any failure on the way in, end them all.

    An id that was never launched is no error to kill, so the undo covers every step.

    Args:
        vertices: The members, where a plan puts them; their bundles are reserved.
        launcher: What starts them.
        site: Facts about the run.
        stop_s: Deadline of the undo, in seconds; it is shielded for as long.

    Raises:
        PortFailed: A member could not be opened.
    """
    group = WorkerGroup(tuple(vertex.name for vertex in vertices), launcher)
    async with undoing(group.stop, stop_s):
        for vertex in vertices:
            await launcher.launch(spec_of(vertex, site))
        yield group
