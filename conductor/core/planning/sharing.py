"""Ranks and CPU sets: what follows for workers once each has its place."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from conductor.core.planning.rooms import Seat, controllers_cpus
from protocols.backend import Inventory, Node, Ranks
from protocols.messages import WorkerId


def rank(workers: Iterable[tuple[WorkerId, str, str]]) -> dict[WorkerId, Ranks]:
    """Return every rank of workers that stand in the order of their world ranks.

    Args:
        workers: Name, role and node of each.
    """
    roles: Counter[str] = Counter()
    local: Counter[str] = Counter()
    nodes: dict[str, int] = {}
    ranks: dict[WorkerId, Ranks] = {}
    for world, (name, role, node) in enumerate(workers):
        number = nodes.setdefault(node, len(nodes))
        ranks[name] = Ranks(world=world, role=roles[role], node=number, local=local[node])
        roles[role] += 1
        local[node] += 1
    return ranks


def rank_seats(seats: Sequence[Seat], inventory: Inventory) -> dict[WorkerId, Ranks]:
    """Rank workers by node, then by device; those without one come last on their node, else they stay in order."""
    nodes = {node.name: number for number, node in enumerate(inventory.nodes)}
    ordered = sorted(seats, key=lambda seat: (nodes[seat.node.name], *device_order(seat.devices)))
    return rank((seat.worker, seat.wish.name, seat.node.name) for seat in ordered)


def device_order(devices: Sequence[int]) -> tuple[bool, int]:
    """Return what workers of one node are ordered by."""
    return (False, devices[0]) if devices else (True, 0)


def exclusive(cpus: float) -> int:
    """Return how many CPUs a worker that asks for so many has to itself: a whole number are, a part is shared."""
    return int(cpus) if cpus == int(cpus) else 0


def workers_cpus(node: Node, inventory: Inventory) -> tuple[int, ...]:
    """Return the CPUs of a node that workers may be bound to: all but the controller's."""
    kept = controllers_cpus(inventory) if node.name == inventory.controller else ()
    return tuple(cpu for cpu in node.cpus if cpu not in kept)


def bind(seats: Sequence[Seat], inventory: Inventory) -> dict[WorkerId, tuple[int, ...]]:
    """Return the CPUs of each worker: its own, or those that are left over for all who share.

    Where none are left over, who asked for none shares those of the others.
    """
    bound: dict[WorkerId, tuple[int, ...]] = {}
    here: defaultdict[str, list[Seat]] = defaultdict(list)
    for seat in seats:
        here[seat.node.name].append(seat)
    for node in inventory.nodes:
        bound.update(_bind_node(here[node.name], workers_cpus(node, inventory)))
    return bound


def _bind_node(seats: Sequence[Seat], cpus: tuple[int, ...]) -> Mapping[WorkerId, tuple[int, ...]]:
    bound: dict[WorkerId, tuple[int, ...]] = {}
    given = 0
    for seat in seats:
        if own := exclusive(seat.wish.resources.cpus):
            bound[seat.worker] = cpus[given : given + own]
            given += own
    left = cpus[given:] or cpus
    return {seat.worker: bound.get(seat.worker, left) for seat in seats}
