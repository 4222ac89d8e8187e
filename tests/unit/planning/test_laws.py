"""Laws of every plan, over random jobs and nodes."""

from collections import Counter

import msgspec
from hypothesis import HealthCheck, assume, given, settings

from conductor.config import RunConfig
from conductor.core.planning.plan import plan
from conductor.core.planning.verify import verify
from protocols.backend import Inventory
from protocols.fleet import Plan
from tests.unit.planning.fleets import inventories, jobs


def made(job: RunConfig, inventory: Inventory) -> Plan:
    found = plan(job, inventory)
    assume(isinstance(found, Plan))
    assert isinstance(found, Plan)
    return found


@given(jobs(), inventories())
def test_a_plan_passes_the_check_that_edited_plans_pass(job: RunConfig, inventory: Inventory) -> None:
    """One measure for both: what the planner makes, launch accepts."""
    assert verify(made(job, inventory), job, inventory) == ()


@given(jobs(), inventories())
def test_the_same_job_on_the_same_nodes_has_the_same_plan(job: RunConfig, inventory: Inventory) -> None:
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(job), type=RunConfig)
    assert plan(job, inventory) == plan(again, inventory)


@given(jobs(), inventories())
def test_every_worker_of_the_job_has_a_place_and_no_other(job: RunConfig, inventory: Inventory) -> None:
    found = made(job, inventory)
    counts = Counter(vertex.role for vertex in found.vertices)
    assert counts == {role.name: role.instances for role in found.roles}
    assert counts["rollout"] == job.engines
    assert len({vertex.name for vertex in found.vertices}) == len(found.vertices)
    assert sorted(name for bundle in found.bundles for name in bundle.members) == sorted(
        vertex.name for vertex in found.vertices
    )


@given(jobs(), inventories())
def test_no_device_and_no_memory_is_lent_twice(job: RunConfig, inventory: Inventory) -> None:
    """W13: what many instances ask for together was never added up."""
    found = made(job, inventory)
    nodes = {node.name: node for node in inventory.nodes}
    holders: Counter[tuple[str, int]] = Counter()
    for bundle in found.bundles:
        members = [vertex for vertex in found.vertices if vertex.name in bundle.members]
        assert {vertex.node for vertex in members} == {bundle.node}
        holders.update({(bundle.node, device) for vertex in members for device in vertex.devices})
    assert all(count == 1 for count in holders.values())
    assert all(0 <= device < nodes[name].total.accelerators for name, device in holders)
    for node in inventory.nodes:
        taken = [bundle.resources for bundle in found.bundles if bundle.node == node.name]
        assert sum(one.memory_gib for one in taken) <= node.total.memory_gib
        assert sum(one.cpus for one in taken) <= node.total.cpus
        assert sum(one.accelerators for one in taken) <= node.total.accelerators
    asked = {role.name: role.resources.accelerators for role in found.roles}
    assert all(len(set(vertex.devices)) == asked[vertex.role] for vertex in found.vertices)


@given(jobs(), inventories())
def test_ranks_are_whole_and_go_by_node_then_device(job: RunConfig, inventory: Inventory) -> None:
    """W16: ranks [0, 2, 3] were stored by rank and read by position."""
    found = made(job, inventory)
    order = [node.name for node in inventory.nodes]
    by_world = sorted(found.vertices, key=lambda vertex: vertex.ranks.world)
    assert [vertex.ranks.world for vertex in by_world] == list(range(len(by_world)))
    places = [(order.index(vertex.node), vertex.devices[:1] or (99,)) for vertex in by_world]
    assert places == sorted(places)
    for kind, key in (("role", "role"), ("local", "node")):
        for group in {getattr(vertex, key) for vertex in by_world}:
            ranks = [getattr(vertex.ranks, kind) for vertex in by_world if getattr(vertex, key) == group]
            assert ranks == list(range(len(ranks)))
    used = list(dict.fromkeys(vertex.node for vertex in by_world))
    assert all(used[vertex.ranks.node] == vertex.node for vertex in by_world)


@given(jobs(), inventories())
def test_the_controller_keeps_a_cpu_and_nobody_leaves_the_mask(job: RunConfig, inventory: Inventory) -> None:
    """One busy worker on the controller's only CPU delays every decision."""
    found = made(job, inventory)
    for node in inventory.nodes:
        here = [vertex for vertex in found.vertices if vertex.node == node.name]
        assert all(set(vertex.cpus) <= set(node.cpus) for vertex in here), "the operator's mask"
        assert all(bool(vertex.cpus) == bool(node.cpus) for vertex in here)
        if node.name == inventory.controller and len(node.cpus) >= 3:
            assert found.controller_cpus
            assert all(not set(vertex.cpus) & set(found.controller_cpus) for vertex in here)
    asked = {role.name: role.resources.cpus for role in found.roles}
    alone = [vertex for vertex in found.vertices if asked[vertex.role] >= 1 and asked[vertex.role].is_integer()]
    owned = Counter((vertex.node, cpu) for vertex in alone for cpu in vertex.cpus)
    assert all(count == 1 for count in owned.values())
    assert all(len(vertex.cpus) in {0, asked[vertex.role]} for vertex in alone)


@given(jobs(), inventories())
@settings(max_examples=300, suppress_health_check=[HealthCheck.filter_too_much])  # most jobs have a plan
def test_what_has_no_plan_is_refused_with_a_reason(job: RunConfig, inventory: Inventory) -> None:
    """W04: what can never be had was waited for."""
    found = plan(job, inventory)
    assume(not isinstance(found, Plan))
    assert isinstance(found, tuple)
    assert found
    assert all(problem.field.startswith(("fleet.", "backend")) for problem in found)
    assert len({str(problem) for problem in found}) == len(found)
