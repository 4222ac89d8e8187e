"""One role's workers: reserved, launched, and undone in the reverse order, whatever happens."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import anyio

from protocols.backend import Backend, LauncherPort, PlacementPort, ReserveRequest, Resources, WorkloadSpec
from protocols.errors import PortFailed
from protocols.lifecycle import LifecyclePort
from protocols.messages import WorkerId
from protocols.sections import Section, Site


def member_specs(role: str, section: str, adapter: Section, site: Site, *, count: int = 1) -> tuple[WorkloadSpec, ...]:
    """Return the specs of ``count`` equal members of a role, ``role/0`` first."""
    return tuple(
        WorkloadSpec(
            worker_id=WorkerId(f"{role}/{index}"),
            section=section,
            adapter=adapter,
            site=site,
            reservation_id=f"{role}/{index}",
        )
        for index in range(count)
    )


class WorkerGroup:
    """The face of a started group (``LifecyclePort``)."""

    def __init__(self, specs: Sequence[WorkloadSpec], backend: Backend) -> None:
        self.members = tuple(spec.worker_id for spec in specs)
        self._reservations = tuple(spec.reservation_id for spec in specs)
        self._launcher: LauncherPort = backend.launcher
        self._placement: PlacementPort = backend.placement

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
        """End every member and give its resources back, all of them even if one fails.

        Raises:
            PortFailed: Some could not be ended; it names them.
        """
        failed: list[str] = []
        for member, reservation in zip(reversed(self.members), reversed(self._reservations), strict=True):
            try:
                await self._launcher.kill(member)
                await self._placement.release(reservation)
            except Exception as exc:  # noqa: BLE001 - the others are still to be ended; told below
                failed.append(f"{member} ({exc})")
        if failed:
            raise PortFailed(f"could not end {', '.join(failed)}")


_: type[LifecyclePort] = WorkerGroup


@asynccontextmanager
async def open_group(
    specs: Sequence[WorkloadSpec], backend: Backend, *, resources: Resources, stop_s: float
) -> AsyncGenerator[WorkerGroup]:
    """Reserve and launch every member; on the way out, and on any failure on the way in, undo it all.

    An id that was never reserved or launched is no error to release or kill, so the undo covers every step.

    Args:
        specs: The members.
        backend: Where they run.
        resources: Of each member.
        stop_s: Deadline of the undo, in seconds; it is shielded for as long.

    Raises:
        Infeasible: The resources do not exist.
        PortFailed: A member could not be opened.
    """
    group = WorkerGroup(specs, backend)
    error: BaseException | None = None
    try:
        for spec in specs:
            await backend.placement.reserve(ReserveRequest(reservation_id=spec.reservation_id, resources=resources))
            await backend.launcher.launch(spec)
        yield group
    except BaseException as exc:
        error = exc
        raise
    finally:
        with anyio.move_on_after(stop_s, shield=True) as scope:
            await _stop(group, error)
        if scope.cancelled_caught:
            _tell(f"not ended within {stop_s:g} s", error)


async def _stop(group: WorkerGroup, error: BaseException | None) -> None:
    try:
        await group.stop()
    except PortFailed as exc:
        _tell(str(exc), error)


def _tell(teardown: str, error: BaseException | None) -> None:
    """Make a failing teardown a note on the error that was there before it, or an error of its own."""
    if error is None:
        raise PortFailed(teardown)
    error.add_note(f"teardown: {teardown}")
