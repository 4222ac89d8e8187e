"""A job's wishes, and everything that is wrong with them before anybody asks what there is."""

import difflib
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from conductor.config import CollocateConfig, FleetConfig, RoleConfig
from conductor.core.planning.wishes import POLICY, ROLES, ROLLOUT, Runs, Team, Wish, launched, wish_of
from protocols.errors import Problem
from protocols.fleet import CONTROLLER

_SAFE = re.compile(r"[a-z][a-z0-9_-]*")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is to be placed.

    Attributes:
        wishes: Every role that the job launches, in the order of launching.
        teams: The same, by what lies together; only those with which nothing is wrong.
        problems: What is wrong.
    """

    wishes: tuple[Wish, ...]
    teams: tuple[Team, ...]
    problems: tuple[Problem, ...]


def request_of(fields: Mapping[str, Any], given: Collection[str] = ()) -> Request:
    """Read what a job wants of its fleet.

    Args:
        fields: ``wishes.FIELDS`` of the job, each right by itself.
        given: Sections whose workloads are handed over in code.
    """
    fleet: FleetConfig = fields["fleet"]
    roles = launched(fields, given)
    wishes = tuple(wish_of(name, runs, fleet) for name, runs in roles.items())
    wrong = {name: list(_role_problems(name, config, roles)) for name, config in fleet.roles.items()}
    problems = [problem for found in wrong.values() for problem in found]
    problems += _variables(fleet.environment, "fleet.environment")
    problems += _queue_problems(fleet, roles)
    problems += _check_problems(fleet, wishes)
    teams: list[Team] = []
    together: Counter[str] = Counter()
    for number, group in enumerate(fleet.collocate):
        found = list(_team_problems(f"fleet.collocate[{number}]", group, wishes, fleet, together))
        together.update(set(group.roles))
        problems += found
        if not found and not any(wrong.get(name) for name in group.roles):
            teams.append(_team(group, wishes))
    teams += (Team(wishes=(wish,), bundles=wish.instances) for wish in wishes
              if wish.name not in together and not wrong.get(wish.name))  # fmt: skip
    order = [wish.name for wish in wishes]
    return Request(
        wishes=wishes,
        teams=tuple(sorted(teams, key=lambda team: order.index(team.name))),
        problems=tuple(problems),
    )


def _team(group: CollocateConfig, wishes: tuple[Wish, ...]) -> Team:
    members = tuple(wish for wish in wishes if wish.name in group.roles)
    return Team(wishes=members, bundles=min(wish.instances for wish in members), share=group.share)


def _role_problems(name: str, config: RoleConfig, roles: Mapping[str, Runs]) -> Iterator[Problem]:
    at = f"fleet.roles.{name}"
    own = bool(config.kind or config.command or config.options)
    if not _SAFE.fullmatch(name) or name == CONTROLLER:
        why = "it is the controller's" if name == CONTROLLER else "names of workers and of their files are made of it"
        mend = "give another name: small letters, digits, - and _, a letter first"
        yield Problem(field=at, value=None, why=why, mend=mend)
    if name in ROLES:
        yield from _known_role(at, name, config, own=own, launched=name in roles)
    elif not own:
        near = difflib.get_close_matches(name, ROLES, n=1)
        mend = f"did you mean '{near[0]}'?" if near else 'say what it runs: kind = "module:name", or command'
        yield Problem(field=at, value=None, why=f"no such role; known are {', '.join(ROLES)}", mend=mend)
    elif bool(config.kind) == bool(config.command) or (config.command and config.options):
        why = "it says twice what it runs" if config.command else "'options' are an adapter's, and it names none"
        yield Problem(field=at, value=None, why=why, mend='give kind = "module:name", or command')
    if name in roles:
        fleet = FleetConfig(roles={name: config})
        yield from _range(at, name, config, wish_of(name, roles[name], fleet).instances)
        yield from _counts(at, wish_of(name, roles[name], fleet))
        yield from _environments(at, config, wish_of(name, roles[name], fleet).instances)


def _queue_problems(fleet: FleetConfig, roles: Mapping[str, Runs]) -> Iterator[Problem]:
    for name, queue in fleet.queues.items():
        if queue.consumer not in roles:
            near = difflib.get_close_matches(queue.consumer, roles, n=1)
            mend = f"did you mean '{near[0]}'?" if near else f"name one of {', '.join(roles)}"
            at, value = f"fleet.queues.{name}.consumer", repr(queue.consumer)
            yield Problem(field=at, value=value, why="the job has no such role", mend=mend)


def _check_problems(fleet: FleetConfig, wishes: tuple[Wish, ...]) -> Iterator[Problem]:
    """Find that nodes are to be checked where nobody is who could be compared."""
    ranks = next((wish.instances for wish in wishes if wish.name == POLICY), 0)
    if fleet.check is not None and ranks < 2:
        why = f"nodes are checked by the ranks of {POLICY} in pairs, and the job launches {ranks or 'none'}"
        mend = f"leave it out, or set fleet.roles.{POLICY}.instances"
        yield Problem(field="fleet.check", value=None, why=why, mend=mend)


def _known_role(at: str, name: str, config: RoleConfig, *, own: bool, launched: bool) -> Iterator[Problem]:
    section = ROLES[name]
    if own:
        yield Problem(field=at, value=None, why=f"[{section}] says what it runs", mend="leave out kind and command")
    if not launched:
        why = f"nothing of it is launched: [{section}] is missing, or handed over in code"
        yield Problem(field=at, value=None, why=why, mend="leave it out")
    if config.instances is not None and name == ROLLOUT:
        why, value = "'engines' says how many there are", str(config.instances)
        yield Problem(field=f"{at}.instances", value=value, why=why, mend=f"set engines = {value}")


def _range(at: str, name: str, config: RoleConfig, instances: int) -> Iterator[Problem]:
    """Find what is wrong with the range within which a role may be scaled."""
    if name != ROLLOUT and (config.min or config.max):
        why = f"only {ROLLOUT} can be scaled while the run goes on"
        yield Problem(field=f"{at}.{'min' if config.min else 'max'}", value=None, why=why, mend="leave it out")
        return
    if config.min is not None and config.min > instances:
        why, mend = f"the run begins with {instances}, which is fewer", f"give {instances} at most"
        yield Problem(field=f"{at}.min", value=str(config.min), why=why, mend=mend)
    if config.max is not None and config.max < instances:
        why, mend = f"the run begins with {instances}, which is more", f"give {instances} at least"
        yield Problem(field=f"{at}.max", value=str(config.max), why=why, mend=mend)


def _counts(at: str, wish: Wish) -> Iterator[Problem]:
    """Find counts that do not fit one another."""
    if wish.per_node and wish.instances % wish.per_node:
        why = f"{wish.instances} instances cannot be divided by it"
        mend = f"give a divisor of {wish.instances}"
        yield Problem(field=f"{at}.per_node", value=str(wish.per_node), why=why, mend=mend)
    if wish.devices is None:
        if wish.shares_devices:
            why, mend = "nothing says which devices are shared", "name them: devices = [[0], [0]]"
            yield Problem(field=f"{at}.share_devices", value="true", why=why, mend=mend)
        return
    count = len(wish.devices)
    if count > wish.instances:
        why = f"it has {count} entries for {wish.instances} instances: no instance runs on the last of them"
        yield Problem(field=f"{at}.devices", value=None, why=why, mend=f"give {wish.instances}")
    elif count < wish.instances:
        why = f"it has {count} entries for {wish.instances} instances: {wish.worker(count)} has none"
        yield Problem(field=f"{at}.devices", value=None, why=why, mend=f"give {wish.instances}")
    asked = wish.resources.accelerators
    for instance, devices in enumerate(wish.devices):
        if len(set(devices)) != asked:
            why = f"an instance has {asked} accelerators"
            mend = f"name {asked} different ones, or set accelerators"
            yield Problem(field=f"{at}.devices[{instance}]", value=str(list(devices)), why=why, mend=mend)


def _environments(at: str, config: RoleConfig, instances: int) -> Iterator[Problem]:
    yield from _variables(config.environment, f"{at}.environment")
    for number, variables in config.instance_environment.items():
        field = f"{at}.instance_environment.{number}"
        yield from _variables(variables, field)
        if number not in map(str, range(instances)):
            why = f"there is no such instance: they are 0 to {instances - 1}"
            yield Problem(field=field, value=None, why=why, mend="give the number of an instance")


def _variables(environment: Mapping[str, str], at: str) -> Iterator[Problem]:
    for name, value in environment.items():
        if not name or "=" in name or "\0" in name + value:
            why, mend = "no process takes such a variable", "leave out '=' in its name and zero bytes"
            yield Problem(field=f"{at}.{name or repr(name)}", value=repr(value), why=why, mend=mend)


def _team_problems(
    at: str, group: CollocateConfig, wishes: tuple[Wish, ...], fleet: FleetConfig, together: Collection[str]
) -> Iterator[Problem]:
    known = {wish.name for wish in wishes}
    for name, times in Counter(group.roles).items():
        if name not in known and name not in fleet.roles:  # what is wrong with those is said there
            why, mend = "the job launches no such role", f"name some of {', '.join(sorted(known))}"
            yield Problem(field=f"{at}.roles", value=repr(name), why=why, mend=mend)
        if times > 1 or name in together:
            why = "it is named twice" if times > 1 else "it lies together with others already"
            yield Problem(
                field=f"{at}.roles", value=repr(name), why=why, mend="name each role once in all of collocate"
            )
    members = tuple(wish for wish in wishes if wish.name in group.roles)
    if len(members) > 1:
        yield from _unequal(at, group, members)


def _unequal(at: str, group: CollocateConfig, members: tuple[Wish, ...]) -> Iterator[Problem]:
    """Find wishes of collocated roles that cannot all be had."""
    bundles = min(wish.instances for wish in members)
    if odd := [wish for wish in members if wish.instances % bundles]:
        listed = ", ".join(f"{wish.name} has {wish.instances}" for wish in odd)
        why = f"its roles are placed in {bundles} bundles, and {listed} instances, which cannot be divided by that"
        yield Problem(field=f"{at}.roles", value=None, why=why, mend="give each of them a multiple of the fewest")
        return
    for asked, values in (
        ("placement", {wish.strategy for wish in members}),
        ("per_node", {wish.per_node * bundles / wish.instances for wish in members if wish.per_node}),
    ):
        if len(values) > 1:
            why = f"its roles want different values of {asked}, and lie on the same nodes"
            yield Problem(field=f"{at}.roles", value=None, why=why, mend=f"give them one {asked}")
        elif asked == "per_node" and not all(value.is_integer() for value in values if isinstance(value, float)):
            why = "so many instances on a node are no whole number of bundles"
            yield Problem(
                field=f"{at}.roles", value=None, why=why, mend="give a multiple of the instances of one bundle"
            )
    if group.share == "device":
        yield from _shared_devices(at, members)


def _shared_devices(at: str, members: tuple[Wish, ...]) -> Iterator[Problem]:
    for wish in members:
        if not wish.resources.accelerators:
            why, mend = f"{wish.name} asks for no accelerators", "set them, or share the node"
            yield Problem(field=f"{at}.share", value="'device'", why=why, mend=mend)
        if wish.devices is not None:
            why, mend = "it says which devices are shared, and so does 'devices'", "leave out one of the two"
            yield Problem(field=f"{at}.share", value="'device'", why=f"{wish.name}: {why}", mend=mend)
