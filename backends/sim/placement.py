"""A cluster that has room for everything."""

from anyio.lowlevel import checkpoint

from protocols.backend import Inventory, Node, PlacementPort, ReserveRequest, Resources

_PLENTY = Resources(cpus=1e6, accelerators=1_000_000, memory_gib=1e6)


class SimPlacement:
    """Keeps who reserved what, and refuses nothing."""

    def __init__(self) -> None:
        self._held: dict[str, Resources] = {}

    async def inventory(self) -> Inventory:
        """Return one node."""
        await checkpoint()
        held = self._held.values()
        free = Resources(
            cpus=_PLENTY.cpus - sum(one.cpus for one in held),
            accelerators=_PLENTY.accelerators - sum(one.accelerators for one in held),
            memory_gib=_PLENTY.memory_gib - sum(one.memory_gib for one in held),
        )
        return Inventory(nodes=(Node(name="simulated", total=_PLENTY, free=free, device="simulated"),))

    async def reserve(self, request: ReserveRequest) -> None:
        """Hold resources."""
        await checkpoint()
        self._held.setdefault(request.reservation_id, request.resources)

    async def release(self, reservation_id: str) -> None:
        """Give them back."""
        self._held.pop(reservation_id, None)
        await checkpoint()


_: type[PlacementPort] = SimPlacement
