"""A plan that changes while its workers run: more of them, fewer, or some elsewhere. Nobody who runs is moved."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import count, islice

import msgspec

from conductor.config import RoleConfig, RunConfig
from conductor.core.planning.placing import domain_of, on_hardware, place_bundles
from conductor.core.planning.plan import vertex_at
from conductor.core.planning.request import Request, request_of
from conductor.core.planning.rooms import Room, Seat, for_workers
from conductor.core.planning.sharing import exclusive, workers_cpus
from conductor.core.planning.wishes import ROLLOUT, Team, Wish
from protocols.backend import Inventory, Node, Ranks, Resources
from protocols.errors import Problem
from protocols.fleet import Bundle, Plan, Vertex
from protocols.messages import WorkerId

_OTHERS = ""
"""The team of whatever else holds resources of a node."""


def find_unscalable(job: RunConfig, role: str, size: int) -> Problem | None:
    """Say why a role cannot be brought to a size, whatever there is; None: it may be tried.

    Args:
        job: The job that runs.
        role: Any name.
        size: How many workers it is to have.
    """
    if role != ROLLOUT:
        why = f"only {ROLLOUT} can be scaled while the run goes on"
        if role == "policy":
            why += "; ranks that train together hold one state, and their number is settled when they meet"
        return Problem(field=role, value=str(size), why=why, mend="stop the run, change the job, resume it")
    config = job.fleet.roles.get(role, RoleConfig())
    fewest = max(config.min or 1, job.reserved_engines + 1)
    if size < fewest or (config.max is not None and size > config.max):
        most = "as many as find a place" if config.max is None else str(config.max)
        why = f"{role} may have from {fewest} to {most}"
        return Problem(field=role, value=str(size), why=why, mend=f"see fleet.roles.{role}.min and max")
    if any(role in group.roles for group in job.fleet.collocate):
        why = "it lies in bundles together with other roles, which cannot be scaled"
        return Problem(field=role, value=str(size), why=why, mend="leave it out of fleet.collocate")
    return None


def grown(
    plan: Plan, job: RunConfig, inventory: Inventory, *, role: str, more: int, given: Collection[str] = ()
) -> Plan | tuple[Problem, ...]:
    """Return a plan with more workers of a role beside those that it has; or everything that stands against it.

    New workers get the lowest numbers that are free, what is left of CPUs and devices, and the ranks after all others.
    CPUs that the new ones have to themselves are taken from those that nobody has alone: whoever was bound to all that
    was left over stays bound to them.

    Args:
        plan: Whose workers run.
        job: As for ``plan``.
        inventory: What there is now; what others than the plan's workers hold is not given away.
        role: One that may be scaled.
        more: How many.
        given: Sections whose workloads are handed over in code.
    """
    taken = {_number(vertex.name) for vertex in plan.workers(role)}
    numbers = tuple(islice((number for number in count() if number not in taken), more))
    request = _request(job, max(*taken, *numbers, 0) + 1, inventory, given)
    if request.problems:
        return request.problems
    wish = next(wish for wish in request.wishes if wish.name == role)
    if wish.per_node and more % wish.per_node:
        why = f"{more} more cannot be divided by per_node = {wish.per_node}"
        return (Problem(field=role, value=None, why=why, mend=f"add a multiple of {wish.per_node}"),)
    team = Team(wishes=(wish,), bundles=wish.instances)
    seats = place_bundles(team, numbers, _rooms(plan, request, inventory))
    if isinstance(seats, Problem):
        return (seats,)
    vertices = sorted((*plan.workers(role), *_vertices(plan, seats, inventory)), key=lambda one: _number(one.name))
    return _resized(plan, role, vertices, (*plan.bundles, *_bundles(team, seats)))


def shrunk(plan: Plan, role: str, leaving: Collection[WorkerId]) -> Plan:
    """Return a plan without some workers of a role, none of which lies in a bundle with others."""
    kept = [vertex for vertex in plan.workers(role) if vertex.name not in leaving]
    gone = bundles_of(plan, leaving)
    return _resized(plan, role, kept, [bundle for bundle in plan.bundles if bundle not in gone])


def bundles_of(plan: Plan, workers: Collection[WorkerId]) -> list[Bundle]:
    """Return the bundles that hold nobody but some workers."""
    return [bundle for bundle in plan.bundles if set(workers).issuperset(bundle.members)]


def moved(
    plan: Plan,
    job: RunConfig,
    inventory: Inventory,
    *,
    workers: Collection[WorkerId],
    avoid: Collection[str],
    given: Collection[str] = (),
) -> Plan | tuple[Problem, ...]:
    """Return a plan in which some workers of one role, which do not run, lie elsewhere; or what stands against it.

    They keep their names and their ranks among all and in their role.

    Args:
        plan: Whose other workers run.
        job: As for ``plan``.
        inventory: What there is now.
        workers: Who is to move; each is alone in its bundle, and the job leaves its devices open.
        avoid: Failure domains that they must not lie in.
        given: Sections whose workloads are handed over in code.
    """
    before = {vertex.name: vertex for vertex in plan.vertices if vertex.name in workers}
    role = next(iter(before.values())).role
    numbers = tuple(sorted(map(_number, before)))
    engines = max((_number(vertex.name) + 1 for vertex in plan.workers(ROLLOUT)), default=job.engines)
    request = _request(job, engines, inventory, given)
    wish = next(wish for wish in request.wishes if wish.name == role)
    together = any(set(bundle.members) & before.keys() and len(bundle.members) > 1 for bundle in plan.bundles)
    if together or wish.per_node or wish.devices is not None:
        why = "the job says where it lies: with others, so many on each node, or on devices by number"
        return (Problem(field=f"fleet.roles.{role}", value=None, why=why, mend="leave that open"),)
    rest = shrunk(plan, role, before)
    rooms = [room for room in _rooms(rest, request, inventory) if domain_of(room) not in avoid]
    team = Team(wishes=(wish,), bundles=wish.instances)
    seats = place_bundles(team, numbers, rooms)
    if isinstance(seats, Problem):
        return (seats,)
    vertices = {vertex.name: vertex for vertex in plan.workers(role)}
    for vertex in _vertices(rest, seats, inventory):
        kept = before[vertex.name].ranks
        ranks = msgspec.structs.replace(vertex.ranks, world=kept.world, role=kept.role)
        vertices[vertex.name] = msgspec.structs.replace(vertex, ranks=ranks)
    return _resized(plan, role, tuple(vertices.values()), (*rest.bundles, *_bundles(team, seats)))


def _request(job: RunConfig, engines: int, inventory: Inventory, given: Collection[str]) -> Request:
    """Return what a job with so many engines asks of what there is."""
    resized = msgspec.structs.replace(job, engines=engines)
    return on_hardware(request_of(msgspec.structs.asdict(resized), given), inventory)


def _bundles(team: Team, seats: Sequence[Seat]) -> list[Bundle]:
    """Return the bundles of workers that are alone in theirs."""
    return [
        Bundle(name=seat.bundle, node=seat.node.name, resources=team.need, members=(seat.worker,)) for seat in seats
    ]


def _number(worker: WorkerId) -> int:
    return int(worker.rpartition("/")[2])


def _resized(plan: Plan, role: str, workers: Sequence[Vertex], bundles: Sequence[Bundle]) -> Plan:
    by_role = {one.name: workers if one.name == role else plan.workers(one.name) for one in plan.roles}
    return msgspec.structs.replace(
        plan,
        roles=tuple(msgspec.structs.replace(one, instances=len(by_role[one.name])) for one in plan.roles),
        vertices=tuple(vertex for vertices in by_role.values() for vertex in vertices),
        bundles=tuple(bundles),
    )


def _rooms(plan: Plan, request: Request, inventory: Inventory) -> list[Room]:
    """Return what the workers of a plan, and others, leave of each node."""
    wishes = {wish.name: wish for wish in request.wishes}
    rooms: list[Room] = []
    for node in inventory.nodes:
        room = Room(node, for_workers(node, inventory))
        here = [bundle for bundle in plan.bundles if bundle.node == node.name]
        for bundle in here:
            members = [vertex for vertex in plan.vertices if vertex.name in bundle.members]
            seats = [_seat(vertex, wishes[vertex.role], node) for vertex in members]
            room.hold(members[0].role, bundle.resources, seats)
        room.hold(_OTHERS, _held_by_others(node, here))
        rooms.append(room)
    return rooms


def _seat(vertex: Vertex, wish: Wish, node: Node) -> Seat:
    return Seat(wish=wish, instance=_number(vertex.name), node=node, devices=vertex.devices, bundle=vertex.bundle)


def _held_by_others(node: Node, bundles: Sequence[Bundle]) -> Resources:
    """Return what is not free of a node and not the plan's; which accelerators that are is not known."""
    ours = [bundle.resources for bundle in bundles]
    return Resources(
        cpus=max(0.0, node.total.cpus - node.free.cpus - sum(one.cpus for one in ours)),
        memory_gib=max(0.0, node.total.memory_gib - node.free.memory_gib - sum(one.memory_gib for one in ours)),
    )


def _vertices(plan: Plan, seats: Sequence[Seat], inventory: Inventory) -> list[Vertex]:
    cpus = _cpus(plan, seats, inventory)
    return [vertex_at(seat, place, cpus[seat.worker]) for seat, place in zip(seats, _ranks(plan, seats), strict=True)]


def _ranks(plan: Plan, seats: Sequence[Seat]) -> Iterator[Ranks]:
    """Rank new workers after all that run, whose ranks may have gaps."""
    running = [vertex.ranks for vertex in plan.vertices]
    worlds = count(1 + max((one.world for one in running), default=-1))
    roles = count(1 + max((one.ranks.role for one in plan.workers(seats[0].wish.name)), default=-1))
    nodes = {vertex.node: vertex.ranks.node for vertex in plan.vertices}
    locals_ = Counter[str]()
    for vertex in plan.vertices:
        locals_[vertex.node] = max(locals_[vertex.node], vertex.ranks.local + 1)
    for seat in seats:
        name = seat.node.name
        number = nodes.setdefault(name, len(nodes))
        yield Ranks(world=next(worlds), role=next(roles), node=number, local=locals_[name])
        locals_[name] += 1


def _cpus(plan: Plan, seats: Sequence[Seat], inventory: Inventory) -> dict[WorkerId, tuple[int, ...]]:
    """Return the CPUs of new workers: of those that nobody has alone."""
    alone = [vertex for vertex in plan.vertices if exclusive(plan.role(vertex.role).resources.cpus)]
    bound: dict[WorkerId, tuple[int, ...]] = {}
    for node in {seat.node.name: seat.node for seat in seats}.values():
        usable = workers_cpus(node, inventory)
        taken = {cpu for vertex in alone if vertex.node == node.name for cpu in vertex.cpus}
        for seat in (seat for seat in seats if seat.node.name == node.name):
            free = tuple(cpu for cpu in usable if cpu not in taken)
            own = free[: exclusive(seat.wish.resources.cpus)]
            taken.update(own)
            bound[seat.worker] = own or free or usable
    return bound
