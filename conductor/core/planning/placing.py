"""Teams onto nodes: the large ones first, each bundle on the first node that its strategy likes and that has room."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from conductor.core.planning.request import Request
from conductor.core.planning.rooms import Room, Seat, for_workers
from conductor.core.planning.wishes import POLICY, Team, Wish
from protocols.backend import Inventory, Resources
from protocols.errors import Problem


def on_hardware(request: Request, inventory: Inventory) -> Request:
    """Return what a job wants of this fleet: where it has no accelerators, none; everything computes on the CPU."""
    if any(node.total.accelerators for node in inventory.nodes):
        return request
    teams = (replace(team, wishes=tuple(map(_on_cpu, team.wishes)), share="node") for team in request.teams)
    return replace(request, wishes=tuple(map(_on_cpu, request.wishes)), teams=tuple(teams))


def _on_cpu(wish: Wish) -> Wish:
    resources = Resources(cpus=wish.resources.cpus, memory_gib=wish.resources.memory_gib)
    return replace(wish, resources=resources, devices=None, shares_devices=False)


def find_crowded(wishes: Sequence[Wish], inventory: Inventory) -> Iterator[Problem]:
    """Find workers that train together where they would share a process."""
    for wish in wishes:
        if wish.name == POLICY and wish.instances > 1 and not inventory.own_processes:
            why = "workers that train together need a process each, and the backend gives them none"
            mend = "set backend.kind to 'processes', or leave it out"
            field = f"fleet.roles.{wish.name}.instances"
            yield Problem(field=field, value=str(wish.instances), why=why, mend=mend)


def find_impossible(wish: Wish, inventory: Inventory) -> Iterator[Problem]:
    """Find what a role could not have if it had the fleet to itself."""
    at = f"fleet.roles.{wish.name}"
    rooms = [for_workers(node, inventory) for node in inventory.nodes]
    most = max(room.accelerators for room in rooms)
    for instance, devices in enumerate(wish.devices or ()):
        if beyond := [device for device in devices if device >= most]:
            why = f"there is no device {beyond[0]}: the largest node has {most}, from 0 to {most - 1}"
            field = f"{at}.devices[{instance}]"
            yield Problem(field=field, value=str(list(devices)), why=why, mend="name one that is there")
    for field, what, asked, sizes in (
        ("accelerators", "accelerators", wish.resources.accelerators, [room.accelerators for room in rooms]),
        ("cpus", "CPUs", wish.resources.cpus, [room.cpus for room in rooms]),
        ("memory_gib", "GiB of memory", wish.resources.memory_gib, [room.memory_gib for room in rooms]),
    ):
        total = asked * wish.instances
        shared = field == "accelerators" and wish.shares_devices
        if asked > max(sizes):
            why = f"{what} for workers on the largest node: {max(sizes):g}"
        elif total > sum(sizes) and not shared:
            why = f"{what} for {wish.instances} instances of {asked:g}: {total:g}, of {sum(sizes):g} for workers"
        else:
            continue
        yield Problem(field=f"{at}.{field}", value=f"{asked:g}", why=why, mend="ask for less, or for fewer instances")


def place(teams: Sequence[Team], inventory: Inventory) -> tuple[list[Seat], list[Problem]]:
    """Find a place for every team; one that has none is a problem, and takes nothing from the others."""
    rooms = [Room(node, for_workers(node, inventory)) for node in inventory.nodes]
    seats: list[Seat] = []
    problems: list[Problem] = []
    for team in sorted(teams, key=_difficulty):
        placed = place_bundles(team, range(team.bundles), rooms)
        if isinstance(placed, Problem):
            problems.append(placed)
        else:
            seats += placed
    return seats, problems


def _difficulty(team: Team) -> tuple[bool, float, float, float]:
    """Order teams: those that leave least choice come first."""
    need = team.need
    return (not team.names_devices, -need.accelerators, -need.cpus, -need.memory_gib)


def place_bundles(team: Team, numbers: Sequence[int], rooms: Sequence[Room]) -> list[Seat] | Problem:
    """Place some bundles of a team, ``per_node`` at a time where the job says so, or none.

    Args:
        team: Whose.
        numbers: Of the bundles, a multiple of ``per_node``.
        rooms: What is left of the nodes, which may hold others of the team.
    """
    together = team.per_node or 1
    placed: list[tuple[Room, list[Seat]]] = []
    domains = Counter({domain_of(room): 0 for room in rooms})
    for room in rooms:
        domains[domain_of(room)] += room.bundles[team.name]
    for first in range(0, len(numbers), together):
        found = _place_unit(team, numbers[first : first + together], _by_strategy(team, rooms, domains))
        if not found:
            for room, seats in placed:
                room.give_back(team, seats)
            why = f"{len(placed)} of {len(numbers)} find a place: {_why_not(team, rooms)}"
            return Problem(field=_place_of(team), value=None, why=why, mend="ask for less, or for fewer instances")
        placed += found
        domains[domain_of(found[0][0])] += together
    return [seat for _, seats in placed for seat in seats]


def _by_strategy(team: Team, rooms: Sequence[Room], domains: Counter[str]) -> Iterable[Room]:
    """Return the nodes on which a team's next bundle may lie, the best one first."""
    name = team.name
    may = (
        room
        for room in rooms
        if (name not in room.refused or team.names_devices) and not (team.per_node and room.bundles[name])
    )
    if team.strategy == "spread":
        return sorted(may, key=lambda room: (domains[domain_of(room)], room.bundles[name]))
    return may


def domain_of(room: Room) -> str:
    """Return what fails as one with a node."""
    return room.node.domain or room.node.name


def _place_unit(team: Team, bundles: Sequence[int], rooms: Iterable[Room]) -> list[tuple[Room, list[Seat]]]:
    """Place some bundles on one node; returns none where no node has room for them all."""
    for room in rooms:
        placed: list[list[Seat]] = []
        for bundle in bundles:
            found = room.take(team, bundle)
            if isinstance(found, str):
                room.refused[team.name] = found
                break
            placed.append(found)
        else:
            return [(room, seats) for seats in placed]
        for seats in placed:
            room.give_back(team, seats)
    return []


def _why_not(team: Team, rooms: Sequence[Room]) -> str:
    reasons = [room.refused[team.name] for room in rooms if team.name in room.refused]
    if not reasons:
        return f"no node is left for {team.per_node} more"
    others = f", and {len(reasons) - 1} other nodes have no room either" if len(reasons) > 1 else ""
    return f"{reasons[0]}{others}"


def _place_of(team: Team) -> str:
    names = [wish.name for wish in team.wishes]
    return f"fleet.roles.{names[0]}" if len(names) == 1 else f"fleet.collocate ({', '.join(names)})"
