"""One node, this machine, and who holds how much of it."""

import os

from anyio.lowlevel import checkpoint

from protocols.backend import Inventory, Node, PlacementPort, ReserveRequest, Resources
from protocols.errors import Infeasible, Transient

NODE = "local"


def usable_cpus() -> int:
    """Return the number of CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class InprocPlacement:
    """Keeps count of what workloads reserved on one node.

    Args:
        total: What the node has.
    """

    def __init__(self, total: Resources) -> None:
        self._total = total
        self._held: dict[str, Resources] = {}

    async def inventory(self) -> Inventory:
        """Return the one node."""
        await checkpoint()
        return Inventory(nodes=(Node(name=NODE, total=self._total, free=self._free()),))

    async def reserve(self, request: ReserveRequest) -> None:
        """Hold resources; see ``PlacementPort.reserve``."""
        await checkpoint()
        if request.reservation_id in self._held:
            return
        asked, total, free = request.resources, self._total, self._free()
        for what, wanted, all_there, left in (
            ("CPUs", asked.cpus, total.cpus, free.cpus),
            ("accelerators", asked.accelerators, total.accelerators, free.accelerators),
        ):
            named = f"{what} for {request.reservation_id} on one node"
            if wanted > all_there:
                raise Infeasible(what=named, asked=wanted, available=all_there)
            if wanted > left:
                raise Transient(f"{named}: {wanted:g} asked for, {left:g} of {all_there:g} free now")
        self._held[request.reservation_id] = asked

    async def release(self, reservation_id: str) -> None:
        """Give it back; see ``PlacementPort.release``."""
        self._held.pop(reservation_id, None)
        await checkpoint()

    def _free(self) -> Resources:
        held = self._held.values()
        return Resources(
            cpus=self._total.cpus - sum(one.cpus for one in held),
            accelerators=self._total.accelerators - sum(one.accelerators for one in held),
        )


_: type[PlacementPort] = InprocPlacement
