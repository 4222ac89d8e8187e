"""Whether the workers of a plan can be where it puts them."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping

from conductor.core.planning.plan import bundles_of
from conductor.core.planning.request import Request
from conductor.core.planning.rooms import Seat, controllers_cpus, for_workers
from conductor.core.planning.sharing import exclusive
from conductor.core.planning.wishes import Team, Wish
from protocols.backend import Inventory, Node, Resources
from protocols.errors import Problem
from protocols.fleet import Plan, Vertex
from protocols.messages import WorkerId

Workers = Mapping[WorkerId, Vertex]


def find_misplaced(plan: Plan, workers: Workers, request: Request, inventory: Inventory) -> list[Problem]:
    """Find what is wrong with nodes, devices, CPUs and bundles.

    Args:
        plan: The plan.
        workers: Those that the job has as well.
        request: What the job wants of this fleet.
        inventory: What there is.
    """
    nodes = {node.name: node for node in inventory.nodes}
    wishes = {wish.worker(instance): (wish, instance) for wish in request.wishes for instance in range(wish.instances)}
    seats: dict[WorkerId, Seat] = {}
    problems: list[Problem] = []
    for name, vertex in workers.items():
        if vertex.node not in nodes:
            why, mend = "there is no such node", f"name one of {', '.join(nodes)}"
            problems.append(Problem(field=f"{name}.node", value=repr(vertex.node), why=why, mend=mend))
            continue
        wish, instance = wishes[name]
        node = nodes[vertex.node]
        seats[name] = Seat(wish=wish, instance=instance, node=node, devices=vertex.devices, bundle=vertex.bundle)
        kept = plan.controller_cpus if node.name == inventory.controller else ()
        problems += [*_facts(vertex, node), *_devices(vertex, wish, node), *_cpus(vertex, wish, node, kept)]
    alone = [vertex for name, vertex in workers.items() if exclusive(wishes[name][0].resources.cpus)]
    problems += [
        *_controller(plan, nodes, inventory),
        *_crowded(seats, inventory),
        *_shared_devices(seats, request),
        *_shared_cpus(alone),
        *(problem for team in request.teams for problem in (*_per_node(team, seats), *_together(team, seats))),
    ]
    return [*problems, *_bundles(plan, seats, request, misplaced(problems))]


def misplaced(problems: Iterable[Problem]) -> frozenset[str]:
    """Return the workers whose place is wrong, so that what follows from it is not told as well."""
    fields = (problem.field.rpartition(".") for problem in problems)
    return frozenset(worker for worker, _, field in fields if field in {"node", "devices", "bundle"})


def _facts(vertex: Vertex, node: Node) -> Iterator[Problem]:
    device = node.device if vertex.devices else "cpu"
    for field, found, right in (
        ("domain", vertex.domain, node.domain or node.name),
        ("device", vertex.device, device),
    ):
        if found != right:
            why = f"on {node.name} it is {right!r}"
            yield Problem(field=f"{vertex.name}.{field}", value=repr(found), why=why, mend=f"set it to {right!r}")


def _devices(vertex: Vertex, wish: Wish, node: Node) -> Iterator[Problem]:
    field, value, most = f"{vertex.name}.devices", str(list(vertex.devices)), node.total.accelerators
    asked = wish.resources.accelerators
    if len(set(vertex.devices)) != asked or len(vertex.devices) != asked:
        why = f"{wish.name} has {asked} accelerators" if asked else f"{wish.name} has none"
        yield Problem(field=field, value=value, why=why, mend=f"name {asked} different ones")
    if beyond := [device for device in vertex.devices if not 0 <= device < most]:
        why = f"{node.name} has no device {beyond[0]}: it has {most}"
        yield Problem(field=field, value=value, why=why, mend="name one that is there")


def _cpus(vertex: Vertex, wish: Wish, node: Node, kept: Collection[int]) -> Iterator[Problem]:
    field, value = f"{vertex.name}.cpus", str(list(vertex.cpus))
    own = exclusive(wish.resources.cpus)
    if strange := [cpu for cpu in vertex.cpus if cpu not in node.cpus]:
        why = f"CPU {strange[0]} is none that may be used on {node.name}"
        yield Problem(field=field, value=value, why=why, mend=f"choose from {list(node.cpus)}")
    if taken := [cpu for cpu in vertex.cpus if cpu in kept]:
        yield Problem(field=field, value=value, why=f"CPU {taken[0]} is the controller's", mend="leave it out")
    if node.cpus and len(set(vertex.cpus)) < max(own, 1):
        yield Problem(field=field, value=value, why=f"it needs {max(own, 1)}", mend="name as many different ones")


def _controller(plan: Plan, nodes: Mapping[str, Node], inventory: Inventory) -> Iterator[Problem]:
    if plan.controller_node != inventory.controller:
        value, why = repr(plan.controller_node), f"the controller runs on {inventory.controller!r}"
        yield Problem(field="controller_node", value=value, why=why, mend=f"set it to {inventory.controller!r}")
        return
    value = str(list(plan.controller_cpus))
    node = nodes.get(inventory.controller or "")
    if strange := [cpu for cpu in plan.controller_cpus if node is None or cpu not in node.cpus]:
        why = f"CPU {strange[0]} is none that may be used there"
        yield Problem(field="controller_cpus", value=value, why=why, mend="choose one that may")
    if not plan.controller_cpus and controllers_cpus(inventory):
        why = "the controller needs a CPU that no worker computes on"
        yield Problem(field="controller_cpus", value=value, why=why, mend="name one")


def _crowded(seats: Mapping[WorkerId, Seat], inventory: Inventory) -> Iterator[Problem]:
    """Find nodes whose workers ask for more than there is; devices are counted one by one elsewhere."""
    asking: defaultdict[str, list[Resources]] = defaultdict(list)
    for seat in seats.values():
        asking[seat.node.name].append(seat.wish.resources)
    for node in inventory.nodes:
        here = asking[node.name]
        room = for_workers(node, inventory)
        for what, asked, there in (
            ("CPUs", sum(one.cpus for one in here), room.cpus),
            ("GiB of memory", sum(one.memory_gib for one in here), room.memory_gib),
        ):
            if asked > there:
                why = f"its workers ask for {asked:g} {what}, and it has {there:g} for them"
                yield Problem(field=f"nodes.{node.name}", value=None, why=why, mend="move some to another node")


def _shared_devices(seats: Mapping[WorkerId, Seat], request: Request) -> Iterator[Problem]:
    sharing = {wish.name for team in request.teams if team.share == "device" for wish in team.wishes}
    holders: defaultdict[tuple[str, int], list[Seat]] = defaultdict(list)
    for seat in seats.values():
        for device in dict.fromkeys(seat.devices):
            holders[seat.node.name, device].append(seat)
    for (node, device), held in holders.items():
        for number, seat in enumerate(held):
            others = [other for other in held[:number] if not _may_share(seat, other, sharing)]
            if others:
                why = f"{others[0].worker} has device {device} of {node} as well, and the job does not say so"
                mend = "give it another one, or say in the job that they share"
                yield Problem(field=f"{seat.worker}.devices", value=str(list(seat.devices)), why=why, mend=mend)


def _may_share(one: Seat, other: Seat, sharing: Collection[str]) -> bool:
    """Say whether the job lets two workers have one device: both roles say so, or they lie in one bundle that does."""
    if one.wish.shares_devices and other.wish.shares_devices:
        return True
    return one.wish.name in sharing and one.wish.name != other.wish.name and one.bundle == other.bundle


def _shared_cpus(vertices: list[Vertex]) -> Iterator[Problem]:
    holders: dict[tuple[str, int], Vertex] = {}
    for vertex in vertices:
        for cpu in dict.fromkeys(vertex.cpus):
            other = holders.setdefault((vertex.node, cpu), vertex)
            if other is not vertex:
                why = f"CPU {cpu} is {other.name}'s, and both are to have theirs alone"
                yield Problem(
                    field=f"{vertex.name}.cpus", value=str(list(vertex.cpus)), why=why, mend="give it another"
                )


def _per_node(team: Team, seats: Mapping[WorkerId, Seat]) -> Iterator[Problem]:
    for wish in team.wishes:
        counts = Counter(seat.node.name for seat in seats.values() if seat.wish.name == wish.name)
        for node, count in counts.items():
            if wish.per_node and count != wish.per_node:
                why = f"{count} of {wish.name} are on it, and the job wants {wish.per_node} on each of its nodes"
                yield Problem(field=f"nodes.{node}", value=None, why=why, mend="move some")


def _together(team: Team, seats: Mapping[WorkerId, Seat]) -> Iterator[Problem]:
    for number in range(team.bundles):
        members = [seats[name] for wish, n in team.members(number) if (name := wish.worker(n)) in seats]
        yield from _one_bundle(team.bundle(number), team, members)


def _bundles(plan: Plan, seats: Mapping[WorkerId, Seat], request: Request, wrong: frozenset[str]) -> Iterator[Problem]:
    """Find bundles that are not what is reserved for their workers.

    Args:
        plan: The plan.
        seats: Its workers in their places.
        request: What the job wants.
        wrong: Workers whose place is wrong already.
    """
    if len(seats) < sum(wish.instances for wish in request.wishes):
        return  # what those take that are missing is not known
    wanted = {bundle.name: bundle for bundle in bundles_of(request.teams, list(seats.values()))}
    found = Counter(bundle.name for bundle in plan.bundles)
    for name in sorted(wanted.keys() ^ found.keys() | {name for name, times in found.items() if times > 1}):
        why = "the plan does not have it once" if name in wanted else "the job has no such bundle"
        yield Problem(field=f"bundles.{name}", value=None, why=why, mend="set it as in a plan made anew")
    for bundle in plan.bundles:
        right = wanted.get(bundle.name)
        if right is None or not wrong.isdisjoint(right.members):
            continue
        for field in ("node", "resources", "members"):
            said, made = getattr(bundle, field), getattr(right, field)
            if said != made:
                at, why = f"bundles.{bundle.name}.{field}", f"its workers make it {made}"
                yield Problem(field=at, value=str(said), why=why, mend="set it to that")


def _one_bundle(name: str, team: Team, members: list[Seat]) -> Iterator[Problem]:
    for seat in members:
        if seat.bundle != name:
            why = f"the job places it in {name}"
            yield Problem(field=f"{seat.worker}.bundle", value=repr(seat.bundle), why=why, mend=f"set it to {name!r}")
        if seat.node.name != members[0].node.name:
            why = f"{members[0].worker} lies on {members[0].node.name}, and they are to lie together"
            yield Problem(field=f"{seat.worker}.node", value=repr(seat.node.name), why=why, mend="move one of them")
    if team.share != "device":
        return
    devices = {
        wish.name: {one for seat in members if seat.wish is wish for one in seat.devices} for wish in team.wishes
    }
    widest = max(devices, key=lambda role: len(devices[role]))
    for role, used in devices.items():
        if not used <= devices[widest]:
            why = f"{role} uses {sorted(used)} and {widest} {sorted(devices[widest])}, and they are to share devices"
            yield Problem(field=f"bundles.{name}", value=None, why=why, mend="give both the same")
