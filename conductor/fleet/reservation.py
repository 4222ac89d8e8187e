"""The resources of a fleet: all that its plan needs, or none of it."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from conductor.fleet.undo import undo_each, undoing
from protocols.backend import PlacementPort, ReserveRequest
from protocols.fleet import Bundle


@asynccontextmanager
async def open_reservations(
    bundles: Sequence[Bundle], placement: PlacementPort, *, stop_s: float
) -> AsyncGenerator[None]:
    """Hold what every bundle needs, under its name; give all of it back on every way out.

    An id that was never reserved is no error to release, so the undo covers every step.

    Args:
        bundles: Of one plan.
        placement: Who holds the resources.
        stop_s: Deadline of the undo, in seconds; it is shielded for as long.

    Raises:
        Infeasible: The resources do not exist.
        Transient: Others hold them now.
    """
    names = tuple(bundle.name for bundle in bundles)
    async with undoing(lambda: undo_each(names, placement.release), stop_s):
        for bundle in bundles:
            request = ReserveRequest(reservation_id=bundle.name, resources=bundle.resources, node=bundle.node)
            await placement.reserve(request)
        yield
