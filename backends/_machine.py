"""One node, this machine, and who holds how much of it."""

import os
from pathlib import Path

from anyio.lowlevel import checkpoint

from protocols.backend import Inventory, Node, PlacementPort, ReserveRequest, Resources
from protocols.errors import Infeasible, Transient

NODE = "local"

_NVIDIA = Path("/proc/driver/nvidia/gpus")


def usable_cpus() -> tuple[int, ...]:
    """Return the numbers of the CPUs that this process may run on, in order."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def memory_gib() -> float:
    """Return the memory of this machine in GiB; 0 where the system does not say."""
    if {"SC_PAGE_SIZE", "SC_PHYS_PAGES"} <= os.sysconf_names.keys():
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return 0.0


def accelerators() -> tuple[str, ...]:
    """Return what CUDA calls the accelerators that this process may use: ``CUDA_VISIBLE_DEVICES``, or their numbers.

    Nothing is imported and no driver is started: the system lists them.
    """
    if not _NVIDIA.is_dir():
        return ()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return tuple(name for name in visible.split(",") if name)
    return tuple(str(number) for number, _ in enumerate(_NVIDIA.iterdir()))


class MachinePlacement:
    """Keeps count of what workloads reserved on one node.

    Args:
        total: What the node has.
        cpus: Numbers of its CPUs.
        own_processes: Whether each workload has a process of its own.
    """

    def __init__(self, total: Resources, cpus: tuple[int, ...] = (), *, own_processes: bool = False) -> None:
        self._total = total
        self._cpus = cpus
        self._own_processes = own_processes
        self._held: dict[str, Resources] = {}

    async def inventory(self) -> Inventory:
        """Return the one node, which is the controller's as well."""
        await checkpoint()
        device = "cuda" if self._total.accelerators else "cpu"
        node = Node(name=NODE, total=self._total, free=self._free(), device=device, cpus=self._cpus)
        return Inventory(nodes=(node,), controller=NODE, own_processes=self._own_processes)

    async def reserve(self, request: ReserveRequest) -> None:
        """Hold resources; see ``PlacementPort.reserve``."""
        await checkpoint()
        if request.reservation_id in self._held:
            return
        if request.node not in {None, NODE}:
            raise Infeasible(what=f"{request.node} for {request.reservation_id}: no such node", asked=1, available=0)
        asked, total, free = request.resources, self._total, self._free()
        for what, wanted, all_there, left in (
            ("CPUs", asked.cpus, total.cpus, free.cpus),
            ("accelerators", asked.accelerators, total.accelerators, free.accelerators),
            ("GiB of memory", asked.memory_gib, total.memory_gib, free.memory_gib),
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
            memory_gib=self._total.memory_gib - sum(one.memory_gib for one in held),
        )


_: type[PlacementPort] = MachinePlacement
