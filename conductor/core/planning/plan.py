"""The plan of a job on what there is."""

from collections.abc import Collection, Iterator, Sequence

import msgspec

from conductor.config import RunConfig
from conductor.core.planning.placing import find_crowded, find_impossible, on_hardware, place
from conductor.core.planning.request import request_of
from conductor.core.planning.rooms import Seat, controllers_cpus
from conductor.core.planning.sharing import bind, rank_seats
from conductor.core.planning.wishes import EPISODE, OWN_SECTION, ROLLOUT, Team, Wish
from protocols.backend import Inventory, Ranks
from protocols.errors import Problem
from protocols.fleet import CONTROLLER, Bundle, Edge, Plan, PlannedRole, Vertex


def plan(job: RunConfig, inventory: Inventory, given: Collection[str] = ()) -> Plan | tuple[Problem, ...]:
    """Say where every worker of a job runs, and with what; or everything that stands against it.

    The same job on the same inventory has the same plan. It is made of all there is, free or not: what
    others hold is found when it is reserved.

    Args:
        job: Its fields are right by themselves.
        inventory: What there is, as the backend found it.
        given: Sections whose workloads are handed over in code.
    """
    request = request_of(msgspec.structs.asdict(job), given)
    if unusable := tuple(find_unusable(inventory)):
        return (*request.problems, *unusable)
    request = on_hardware(request, inventory)
    impossible = {wish.name: tuple(find_impossible(wish, inventory)) for wish in request.wishes}
    possible = [team for team in request.teams if not any(impossible[wish.name] for wish in team.wishes)]
    seats, homeless = place(possible, inventory)
    crowded = find_crowded(request.wishes, inventory)
    problems = (*request.problems, *crowded, *(one for found in impossible.values() for one in found), *homeless)
    return problems or _assemble(request.wishes, request.teams, seats, inventory)


def find_unusable(inventory: Inventory) -> Iterator[Problem]:
    """Find what makes an inventory no ground for a plan."""
    if not inventory.nodes:
        yield Problem(field="backend", value=None, why="it has no nodes", mend="name another backend")
    names = [node.name for node in inventory.nodes]
    for name in dict.fromkeys(name for name in names if names.count(name) > 1):
        why, mend = "several nodes have this name", "give each node a name of its own"
        yield Problem(field="backend", value=repr(name), why=why, mend=mend)


def _assemble(wishes: Sequence[Wish], teams: Sequence[Team], seats: Sequence[Seat], inventory: Inventory) -> Plan:
    order = {wish.name: number for number, wish in enumerate(wishes)}
    seats = sorted(seats, key=lambda seat: (order[seat.wish.name], seat.instance))
    ranks, cpus = rank_seats(seats, inventory), bind(seats, inventory)
    return Plan(
        roles=tuple(map(planned_role, wishes)),
        vertices=tuple(vertex_at(seat, ranks[seat.worker], cpus[seat.worker]) for seat in seats),
        edges=edges_between(wishes),
        bundles=bundles_of(teams, seats),
        controller_node=inventory.controller,
        controller_cpus=controllers_cpus(inventory),
    )


def planned_role(wish: Wish) -> PlannedRole:
    """Return a role as it stands in a plan."""
    return PlannedRole(
        name=wish.name,
        instances=wish.instances,
        resources=wish.resources,
        strategy=wish.strategy,
        restarts=wish.restarts,
    )


def vertex_at(seat: Seat, ranks: Ranks, cpus: tuple[int, ...]) -> Vertex:
    """Return a worker in its place as it stands in a plan."""
    return Vertex(
        name=seat.worker,
        role=seat.wish.name,
        section=seat.wish.section,
        adapter=seat.wish.adapter,
        environment=seat.wish.environments[seat.instance],
        ranks=ranks,
        node=seat.node.name,
        domain=seat.node.domain or seat.node.name,
        device=seat.node.device if seat.devices else "cpu",
        devices=seat.devices,
        cpus=cpus,
        bundle=seat.bundle,
    )


def edges_between(wishes: Sequence[Wish]) -> tuple[Edge, ...]:
    """Return who calls whom; the controller does not know a role of the user's own, and calls it not."""
    names = [wish.name for wish in wishes]
    edges = [Edge(caller=CONTROLLER, callee=wish.name) for wish in wishes if wish.section != OWN_SECTION]
    if {EPISODE, ROLLOUT} <= set(names):
        edges.append(Edge(caller=EPISODE, callee=ROLLOUT))
    return tuple(edges)


def bundles_of(teams: Sequence[Team], seats: Sequence[Seat]) -> tuple[Bundle, ...]:
    """Return what is reserved together; a device that several bundles share counts in the first of them."""
    where = {seat.worker: seat for seat in seats}
    counted: set[tuple[str, int]] = set()
    bundles: list[Bundle] = []
    for team in teams:
        for number in range(team.bundles):
            members = [where[wish.worker(instance)] for wish, instance in team.members(number)]
            node = members[0].node.name
            devices = {(node, device) for seat in members for device in seat.devices} - counted
            counted |= devices
            resources = msgspec.structs.replace(team.need, accelerators=len(devices))
            names = tuple(seat.worker for seat in members)
            bundles.append(Bundle(name=team.bundle(number), node=node, resources=resources, members=names))
    return tuple(bundles)
