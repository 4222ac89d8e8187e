"""The resources of a fleet: all that its plan needs, or none of it."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from conductor.fleet.undo import undo_each, undoing
from protocols.backend import PlacementPort, ReserveRequest
from protocols.fleet import Bundle


class Reservations:
    """What is held now, under the names of bundles; opened by ``open_reservations``."""

    def __init__(self, placement: PlacementPort) -> None:
        self._placement = placement
        self._names: dict[str, None] = {}

    async def hold(self, bundles: Sequence[Bundle]) -> None:
        """Hold what some bundles need.

        Raises:
            Infeasible: The resources do not exist.
            Transient: Others hold them now.
        """
        for bundle in bundles:
            self._names[bundle.name] = None  # an id that was never reserved is no error to release
            request = ReserveRequest(reservation_id=bundle.name, resources=bundle.resources, node=bundle.node)
            await self._placement.reserve(request)

    async def release(self, names: Sequence[str]) -> None:
        """Give back what some bundles hold, if they do.

        Raises:
            PortFailed: Some could not be given back; it names them.
        """
        await undo_each(names, self._placement.release)
        for name in names:
            self._names.pop(name, None)

    async def release_all(self) -> None:
        """Give everything back; raises as ``release``."""
        await self.release(tuple(self._names))


@asynccontextmanager
async def open_reservations(
    bundles: Sequence[Bundle], placement: PlacementPort, *, stop_s: float
) -> AsyncGenerator[Reservations]:
    """Hold what every bundle needs, under its name; give all that is held then back on every way out.

    Args:
        bundles: Of one plan.
        placement: Who holds the resources.
        stop_s: Deadline of the undo, in seconds; it is shielded for as long.

    Raises:
        Infeasible: The resources do not exist.
        Transient: Others hold them now.
    """
    held = Reservations(placement)
    async with undoing(held.release_all, stop_s):
        await held.hold(bundles)
        yield held
