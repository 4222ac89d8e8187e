"""The members of one role."""

from typing import Protocol

from protocols.fleet import Vertex
from protocols.messages import WorkerId


class LifecyclePort(Protocol):
    """The face of a worker group. Calls may be concurrent, but for ``stop``."""

    async def ready(self) -> frozenset[WorkerId]:
        """Return the members that run."""
        ...

    async def missing(self) -> frozenset[WorkerId]:
        """Return the members that should run and do not."""
        ...

    async def probe(self, member: WorkerId) -> bool:
        """Return whether one member runs, by asking its launcher now."""
        ...

    async def replace(self, members: tuple[WorkerId, ...]) -> None:
        """End some members, if anything of them runs, and launch them again in their places, under their own ids.

        Cancelling: some may be gone; ``stop`` and another ``replace`` find them so.

        Raises:
            ConductorError: One could not be ended or launched.
        """
        ...

    async def scale(self, vertices: tuple[Vertex, ...]) -> None:
        """Launch those of some vertices that are no members yet, then end the members that are none of them.

        No other ``scale`` meanwhile. Where it is cancelled or fails, whoever was a member still is; ``scale`` to the
        members of before ends those that were to join.

        Raises:
            ConductorError: One could not be launched or ended.
        """
        ...

    async def stop(self) -> None:
        """End every member and give its resources back. The group's context manager alone calls it, once.

        Cancelling: what was not reached is ended by the next start of the same ids.
        """
        ...
