"""Plans that grow and shrink while their workers run."""

from collections import Counter

import msgspec
import pytest
from hypothesis import given

from conductor.config import CollocateConfig, FleetConfig, QueueConfig, RoleConfig, RunConfig
from conductor.core.planning.plan import plan
from conductor.core.planning.scaling import find_unscalable, grown, shrunk
from protocols.backend import Inventory, Resources
from protocols.errors import Problem
from protocols.fleet import Plan
from protocols.messages import WorkerId
from tests.support.runs import run_config
from tests.unit.planning.fleets import fleet_of, inventories, job, jobs, node


def planned(cfg: RunConfig, inventory: Inventory) -> Plan:
    made = plan(cfg, inventory)
    assert isinstance(made, Plan), made
    return made


def while_it_runs(made: Plan, inventory: Inventory) -> Inventory:
    """Return what is free once all that a plan needs is reserved."""
    nodes = []
    for one in inventory.nodes:
        held = [bundle.resources for bundle in made.bundles if bundle.node == one.name]
        free = Resources(
            cpus=one.total.cpus - sum(each.cpus for each in held),
            accelerators=one.total.accelerators - sum(each.accelerators for each in held),
            memory_gib=one.total.memory_gib - sum(each.memory_gib for each in held),
        )
        nodes.append(msgspec.structs.replace(one, free=free))
    return msgspec.structs.replace(inventory, nodes=tuple(nodes))


def more(cfg: RunConfig, inventory: Inventory, count: int, made: Plan | None = None) -> Plan | tuple[Problem, ...]:
    made = made or planned(cfg, inventory)
    return grown(made, cfg, while_it_runs(made, inventory), role="rollout", more=count)


def test_new_engines_take_what_is_left_and_move_nobody() -> None:
    cfg = job(engines=2, rollout=RoleConfig(cpus=1, accelerators=1), reward=RoleConfig(cpus=1))
    inventory = fleet_of(node(cpus=8, accelerators=4))
    before = planned(cfg, inventory)
    after = more(cfg, inventory, 2)
    assert isinstance(after, Plan)
    kept = {vertex.name: vertex for vertex in after.vertices}
    assert all(kept[vertex.name] == vertex for vertex in before.vertices)
    assert [vertex.name for vertex in after.workers("rollout")] == [f"rollout/{number}" for number in range(4)]
    assert [vertex.devices for vertex in after.workers("rollout")] == [(0,), (1,), (2,), (3,)]
    alone = [vertex.cpus for role in ("rollout", "reward") for vertex in after.workers(role)]
    assert sorted(cpu for cpus in alone for cpu in cpus) == [1, 2, 3, 4, 5], "nobody shares them, nor the controller's"
    assert after.role("rollout").instances == 4


def test_what_does_not_fit_is_refused_with_the_numbers() -> None:
    cfg = job(engines=2, rollout=RoleConfig(cpus=2))
    problems = more(cfg, fleet_of(node(cpus=8)), 2)
    assert isinstance(problems, tuple)
    assert "1 of 2 find a place" in str(problems[0])
    assert "each asks for 2 CPUs, of which local has 1 left" in str(problems[0])


def test_what_others_hold_is_not_given_away() -> None:
    """The plan was made of all there is; while a run goes on another one may hold the rest."""
    cfg = job(engines=1, rollout=RoleConfig(memory_gib=16))
    inventory = fleet_of(node())
    made = planned(cfg, inventory)
    free = msgspec.structs.replace(inventory.nodes[0], free=Resources(cpus=8, memory_gib=20))
    assert isinstance(grown(made, cfg, fleet_of(free), role="rollout", more=1), Plan)
    assert isinstance(grown(made, cfg, fleet_of(free), role="rollout", more=2), tuple)


@given(cfg=jobs(), inventory=inventories())
def test_whoever_grows_and_shrinks_again_is_as_before(cfg: RunConfig, inventory: Inventory) -> None:
    before = plan(cfg, inventory)
    if not isinstance(before, Plan) or find_unscalable(cfg, "rollout", cfg.engines + 2):
        return
    after = more(cfg, inventory, 2, before)
    if not isinstance(after, Plan):
        return
    added = [vertex for vertex in after.vertices if vertex not in before.vertices]
    assert len(added) == 2
    taken = [(one.node, device) for one in after.workers("rollout") for device in one.devices]
    assert len(taken) == len(set(taken))
    worlds = [vertex.ranks.world for vertex in after.vertices]
    assert sorted(worlds) == list(range(len(worlds)))
    assert {name for bundle in after.bundles for name in bundle.members} == {one.name for one in after.vertices}
    back = shrunk(after, "rollout", {vertex.name for vertex in added})
    assert back == before


def test_a_number_that_is_free_again_is_used_again() -> None:
    cfg, inventory = job(engines=3), fleet_of(node())
    less = shrunk(planned(cfg, inventory), "rollout", {WorkerId("rollout/1")})
    again = more(cfg, inventory, 1, less)
    assert isinstance(again, Plan)
    assert [vertex.name for vertex in again.workers("rollout")] == ["rollout/0", "rollout/1", "rollout/2"]
    assert len({vertex.ranks.world for vertex in again.vertices}) == len(again.vertices)


@pytest.mark.parametrize(
    ("cfg", "role", "size", "text"),
    [
        (
            run_config(engines=2),
            "policy",
            3,
            (
                "policy = 3: only rollout can be scaled while the run goes on; ranks that train together "
                "hold one state, and their number is settled when they meet; stop the run, change the "
                "job, resume it"
            ),
        ),
        (
            run_config(engines=2),
            "reward",
            3,
            "reward = 3: only rollout can be scaled while the run goes on; stop the run, change the job, resume it",
        ),
        (
            run_config(engines=2),
            "rollout",
            0,
            "rollout = 0: rollout may have from 1 to as many as find a place; see fleet.roles.rollout.min and max",
        ),
        (
            job(2, rollout=RoleConfig(min=2, max=4)),
            "rollout",
            5,
            "rollout = 5: rollout may have from 2 to 4; see fleet.roles.rollout.min and max",
        ),
        (
            job(2, rollout=RoleConfig(min=2, max=4)),
            "rollout",
            1,
            "rollout = 1: rollout may have from 2 to 4; see fleet.roles.rollout.min and max",
        ),
        (
            job(2, (CollocateConfig(roles=("rollout", "episode")),)),
            "rollout",
            3,
            (
                "rollout = 3: it lies in bundles together with other roles, which cannot be scaled; "
                "leave it out of fleet.collocate"
            ),
        ),
    ],
)
def test_what_cannot_be_scaled_is_refused_with_the_reason(cfg: RunConfig, role: str, size: int, text: str) -> None:
    assert str(find_unscalable(cfg, role, size)) == text


@pytest.mark.parametrize(
    ("role", "config", "field"),
    [
        ("rollout", RoleConfig(min=3), "fleet.roles.rollout.min"),
        ("rollout", RoleConfig(max=1), "fleet.roles.rollout.max"),
        ("episode", RoleConfig(max=4), "fleet.roles.episode.max"),
    ],
)
def test_a_range_that_the_job_is_not_in_is_a_problem(role: str, config: RoleConfig, field: str) -> None:
    problems = plan(run_config(engines=2, fleet=FleetConfig(roles={role: config})), fleet_of(node()))
    assert isinstance(problems, tuple)
    assert [problem.field for problem in problems] == [field]


@pytest.mark.parametrize("config", [RoleConfig(min=2), RoleConfig(max=2), RoleConfig(min=2, max=2), RoleConfig(min=1)])
def test_a_range_that_the_job_is_at_the_edge_of_is_none(config: RoleConfig) -> None:
    planned(run_config(engines=2, fleet=FleetConfig(roles={"rollout": config})), fleet_of(node()))


def test_new_engines_are_spread_over_domains_as_if_all_had_come_at_once() -> None:
    cfg = job(engines=3, rollout=RoleConfig(cpus=1, placement="spread"))
    racks = {"a1": "a", "a2": "a", "a3": "a", "b1": "b"}
    inventory = fleet_of(*(node(name, cpus=4, domain=rack) for name, rack in racks.items()))
    after = more(cfg, inventory, 1)
    assert isinstance(after, Plan)
    assert Counter(racks[vertex.node] for vertex in after.workers("rollout")) == {"a": 2, "b": 2}


@pytest.mark.parametrize(
    ("consumer", "mend"), [("episodes", "did you mean 'episode'?"), ("zebra", "name one of policy, rollout, episode")]
)
def test_a_queue_that_nobody_takes_from_is_a_problem(consumer: str, mend: str) -> None:
    queues = {"good": QueueConfig(consumer="episode"), "bad": QueueConfig(consumer=consumer)}
    problems = plan(run_config(fleet=FleetConfig(queues=queues)), fleet_of(node()))
    assert isinstance(problems, tuple)
    assert [(problem.field, problem.value) for problem in problems] == [("fleet.queues.bad.consumer", repr(consumer))]
    assert problems[0].mend is not None
    assert problems[0].mend.startswith(mend)
