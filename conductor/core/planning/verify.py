"""Whether a plan that somebody may have edited is a plan of this job on these nodes: as strict as the planner."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise

import msgspec

from conductor.config import RunConfig
from conductor.core.planning.placing import find_crowded, on_hardware
from conductor.core.planning.plan import edges_between, find_unusable, planned_role
from conductor.core.planning.request import Request, request_of
from conductor.core.planning.sharing import device_order, rank
from conductor.core.planning.verify_places import find_misplaced, misplaced
from conductor.core.planning.wishes import Wish
from protocols.backend import Inventory
from protocols.errors import Problem
from protocols.fleet import Plan, Vertex
from protocols.messages import WorkerId

_ANEW = "a plan says where; change the job, and plan it anew"


def verify(plan: Plan, job: RunConfig, inventory: Inventory, given: Collection[str] = ()) -> tuple[Problem, ...]:
    """Find everything that stands against launching a plan.

    Workers may be moved to other nodes, devices, CPUs and ranks; what they are is the job's to say.

    Args:
        plan: Of whatever origin; each of its fields is right by itself.
        job: As for the planner, and so are the others.
        inventory: What there is.
        given: Sections whose workloads are handed over in code.
    """
    request = request_of(msgspec.structs.asdict(job), given)
    if wrong := (*request.problems, *find_unusable(inventory)):
        return wrong
    request = on_hardware(request, inventory)
    known = {wish.worker(instance): (wish, instance) for wish in request.wishes for instance in range(wish.instances)}
    workers = {vertex.name: vertex for vertex in plan.vertices if vertex.name in known}
    places = find_misplaced(plan, workers, request, inventory)
    return (
        *find_crowded(request.wishes, inventory),
        *_roster(plan, known),
        *_roles(plan, request),
        *(problem for name, vertex in workers.items() for problem in _identity(vertex, *known[name])),
        *places,
        *_ranks(plan.vertices, inventory, misplaced(places)),
    )


def _roster(plan: Plan, known: Mapping[WorkerId, tuple[Wish, int]]) -> Iterator[Problem]:
    """Find workers that the job has not, or the plan has not, or has twice."""
    times = Counter(vertex.name for vertex in plan.vertices)
    for name, count in times.items():
        if name not in known:
            yield Problem(field=name, value=None, why="the job has no such worker", mend=_ANEW)
        if count > 1:
            yield Problem(field=name, value=None, why=f"the plan has {count} workers of this name", mend="leave one")
    for name in known:
        if name not in times:
            why = "the job has this worker and the plan has not: nobody runs with its rank"
            yield Problem(field=name, value=None, why=why, mend=_ANEW)


def _roles(plan: Plan, request: Request) -> Iterator[Problem]:
    wanted = {wish.name: planned_role(wish) for wish in request.wishes}
    for role in plan.roles:
        if role != wanted.get(role.name):
            why = "the job describes it otherwise" if role.name in wanted else "the job has no such role"
            yield Problem(field=f"roles.{role.name}", value=None, why=why, mend=_ANEW)
    names = [role.name for role in plan.roles]
    if set(names) < wanted.keys() or len(set(names)) < len(names):
        why = "the job has others" if len(set(names)) == len(names) else "one is named twice"
        yield Problem(field="roles", value=", ".join(names), why=why, mend=_ANEW)
    if plan.edges != edges_between(request.wishes):
        yield Problem(field="edges", value=None, why="others call one another in this job", mend=_ANEW)


def _identity(vertex: Vertex, wish: Wish, instance: int) -> Iterator[Problem]:
    for field, found, wanted in (
        ("role", vertex.role, wish.name),
        ("section", vertex.section, wish.section),
        ("adapter", vertex.adapter, wish.adapter),
        ("environment", vertex.environment, wish.environments[instance]),
    ):
        if found != wanted:
            yield Problem(field=f"{vertex.name}.{field}", value=None, why="the job says otherwise", mend=_ANEW)


def _ranks(vertices: Sequence[Vertex], inventory: Inventory, wrong: Collection[str]) -> Iterator[Problem]:
    """Find ranks that are missing, taken twice, out of order, or at odds with the world rank.

    Args:
        vertices: The workers of the plan.
        inventory: Its nodes are in the order of the ranks.
        wrong: Workers whose place is wrong already.
    """
    worlds = Counter(vertex.ranks.world for vertex in vertices)
    if holes := [number for number in range(len(vertices)) if number not in worlds]:
        listed = ", ".join(map(str, sorted(worlds.elements())))
        why = f"the world ranks are {listed}: {holes[0]} is nobody's"
        mend = f"number the {len(vertices)} workers from 0 without a gap"
        yield Problem(field="ranks.world", value=None, why=why, mend=mend)
        return
    nodes = {node.name: number for number, node in enumerate(inventory.nodes)}
    if any(vertex.node not in nodes for vertex in vertices):
        return  # nobody knows which comes first
    ordered = sorted(vertices, key=lambda vertex: vertex.ranks.world)
    for before, vertex in pairwise(vertex for vertex in ordered if vertex.name not in wrong):
        places = [(nodes[one.node], *device_order(one.devices)) for one in (before, vertex)]
        if places[1] < places[0]:
            field, value = f"{vertex.name}.ranks.world", str(vertex.ranks.world)
            why = f"{before.name} comes before it, and ranks go by node, then by device"
            yield Problem(field=field, value=value, why=why, mend=f"exchange it with {before.name}'s")
    wanted = rank((vertex.name, vertex.role, vertex.node) for vertex in ordered)
    for vertex in vertices:
        for kind in ("role", "node", "local"):
            found, right = getattr(vertex.ranks, kind), getattr(wanted[vertex.name], kind)
            if found != right:
                why = f"by its world rank, {vertex.ranks.world}, it is {right}"
                yield Problem(field=f"{vertex.name}.ranks.{kind}", value=str(found), why=why, mend=f"set it to {right}")
