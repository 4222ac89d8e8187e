"""What a cluster has, and what this run holds of it: a placement group of one bundle for each reservation."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import anyio
import structlog
from anyio.lowlevel import checkpoint
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from backends.ray.calls import asked
from backends.ray.nodes import RayNode, bundle_of, free_of, living, node_of
from protocols.backend import Inventory, PlacementPort, ReserveRequest, Resources
from protocols.errors import Infeasible, Transient

log = structlog.get_logger(__name__)

_LOOK_S = 0.02
_REMOVE_S = 5.0
_NOTHING = Resources()
_GRAIN = 1e-4
"""Ray counts in ten-thousandths, and sums of fractions are not exact."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a worker may run.

    Attributes:
        strategy: For Ray's scheduler; None: anywhere.
        cpus: That were reserved for it and those it shares with; 0: it shares what the node has.
        node_cpus: Of its node; 0: it is not known.
    """

    strategy: Any = None
    cpus: float = 0.0
    node_cpus: float = 0.0


@dataclass(frozen=True, kw_only=True)
class _Held:
    request: ReserveRequest
    node: RayNode
    group: PlacementGroup | None  # None: it asks for nothing, and shares


class RayPlacement:
    """Makes and removes placement groups; Ray removes them too, when the controller dies.

    Args:
        labels: Only nodes that carry all of these are used.
        domain_label: Says what fails as one with a node.
        controller: Ray's id of the controller's node.
        reserve_s: How long the cluster may take to hold what is free.
    """

    def __init__(self, labels: dict[str, str], domain_label: str, controller: str, reserve_s: float) -> None:
        self._labels = labels
        self._domain_label = domain_label
        self._controller = controller
        self._reserve_s = reserve_s
        self._held: dict[str, _Held] = {}
        self._names: dict[str, str] = {}
        self._turn = anyio.Lock()  # between looking at what is free and taking it

    async def inventory(self) -> Inventory:
        """Return the nodes that live."""
        nodes = await self._nodes()
        free = await asked(partial(free_of, nodes))
        controller = next((node.name for node in nodes if node.id == self._controller), None)
        told = tuple(node_of(node, free[node.id], self._domain_label) for node in nodes)
        return Inventory(nodes=told, controller=controller, own_processes=True)

    async def reserve(self, request: ReserveRequest) -> None:
        """Hold resources; see ``PlacementPort.reserve``. It is refused, with the numbers, before Ray is asked.

        Raises:
            Transient: Others hold it, or Ray does not give it in time.
        """
        async with self._turn:
            if request.reservation_id in self._held:
                await checkpoint()
                return
            node = await self._chosen(request)
            self._held[request.reservation_id] = await self._take(request, node)

    async def release(self, reservation_id: str) -> None:
        """Give it back; see ``PlacementPort.release``. It is free on return."""
        held = self._held.pop(reservation_id, None)
        if held is None or held.group is None:
            await checkpoint()
            return
        remove_placement_group(held.group)  # before anything is awaited: it cannot be taken back
        with anyio.move_on_after(_REMOVE_S):
            while await _state(held.group) != "REMOVED":  # noqa: ASYNC110 - Ray tells nobody
                await anyio.sleep(_LOOK_S)

    async def place(self, reservation_id: str) -> Place:
        """Return where a reservation lies; one whose node is gone is moved to another that has room.

        Raises:
            Transient: No node has room now.
            Infeasible: None ever will.
        """
        held = self._held.get(reservation_id)
        nodes = await self._nodes()
        if held is None:
            return Place()
        if held.node.id not in {node.id for node in nodes}:
            held = await self._moved(held)
        cpus, node_cpus = held.request.resources.cpus, held.node.total.cpus
        if held.group is None:
            strategy: Any = NodeAffinitySchedulingStrategy(held.node.id, soft=False)
        else:
            strategy = PlacementGroupSchedulingStrategy(held.group, placement_group_bundle_index=0)
        return Place(strategy=strategy, cpus=cpus, node_cpus=node_cpus)

    async def _nodes(self) -> list[RayNode]:
        """Return the nodes that live, each by the name that it was told by first: plans know it by that."""
        nodes = await asked(partial(living, self._labels))
        return [replace(node, name=self._names.setdefault(node.id, node.name)) for node in nodes]

    async def _moved(self, held: _Held) -> _Held:
        request = held.request
        anywhere = ReserveRequest(reservation_id=request.reservation_id, resources=request.resources)
        async with self._turn:
            node = await self._chosen(anywhere)
            if held.group is not None:
                remove_placement_group(held.group)
            moved = self._held[request.reservation_id] = await self._take(anywhere, node)
        log.warning("reservation.moved", reservation=request.reservation_id, node=node.name, was=held.node.name)
        return moved

    async def _chosen(self, request: ReserveRequest) -> RayNode:
        nodes = await self._nodes()
        return _choose(request, nodes, await asked(partial(free_of, nodes)))

    async def _take(self, request: ReserveRequest, node: RayNode) -> _Held:
        if request.resources == _NOTHING:
            return _Held(request=request, node=node, group=None)
        selector = [{"ray.io/node-id": node.id}]
        group = placement_group([bundle_of(request.resources)], "STRICT_PACK", bundle_label_selector=selector)
        taken = False
        try:
            with anyio.move_on_after(self._reserve_s):
                while await _state(group) != "CREATED":  # noqa: ASYNC110 - Ray tells nobody
                    await anyio.sleep(_LOOK_S)
                taken = True
        finally:
            if not taken:
                remove_placement_group(group)
        if not taken:
            raise Transient(f"{request.reservation_id}: {node.name} did not give it within {self._reserve_s:g} s")
        return _Held(request=request, node=node, group=group)


async def _state(group: PlacementGroup) -> str:
    return (await asked(partial(placement_group_table, group)))["state"]


def _choose(request: ReserveRequest, nodes: list[RayNode], free: dict[str, Resources]) -> RayNode:
    """Return the node that was asked for, or the first that has room.

    Raises:
        Infeasible: No node will ever do.
        Transient: Others hold it now.
    """
    named = [node for node in nodes if request.node in {None, node.name}]
    if not named:
        where = request.node or "a node"
        raise Infeasible(what=f"{where} for {request.reservation_id}: no such node", asked=1, available=0)
    able = [node for node in named if not _lacking(request.resources, node.total)]
    if not able:
        what, asked, there = min((_lacking(request.resources, node.total) for node in named), key=_shortfall)[0]
        raise Infeasible(what=f"{what} for {request.reservation_id} on one node", asked=asked, available=there)
    for node in able:
        if not _lacking(request.resources, free[node.id]):
            return node
    what, asked, left = _lacking(request.resources, free[able[0].id])[0]
    there = dict(_amounts(able[0].total))[what]
    raise Transient(f"{what} for {request.reservation_id}: {asked:g} asked for, {left:g} of {there:g} free now")


def _amounts(resources: Resources) -> list[tuple[str, float]]:
    return [
        ("CPUs", resources.cpus),
        ("accelerators", resources.accelerators),
        ("GiB of memory", resources.memory_gib),
    ]


def _lacking(asked: Resources, there: Resources) -> list[tuple[str, float, float]]:
    """Return what is asked for and not there: its name, how much is asked for, how much there is."""
    pairs = zip(_amounts(asked), _amounts(there), strict=True)
    return [(what, wanted, has) for (what, wanted), (_, has) in pairs if wanted > has + _GRAIN]


def _shortfall(lacking: list[tuple[str, float, float]]) -> float:
    return sum(wanted - has for _, wanted, has in lacking)


_: type[PlacementPort] = RayPlacement
