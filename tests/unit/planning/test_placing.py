"""Where workers go: by hand, on fleets small enough to check by eye."""

import msgspec
import pytest

from conductor.config import CollocateConfig, RoleConfig, RunConfig
from conductor.core.planning.plan import plan
from conductor.core.planning.rooms import for_workers
from protocols.backend import Inventory
from protocols.fleet import Edge, Plan
from tests.unit.planning.fleets import fleet_of, job, node


def made(wanted: RunConfig, nodes: Inventory) -> Plan:
    found = plan(wanted, nodes)
    assert isinstance(found, Plan), found
    return found


def where(found: Plan, role: str) -> list[str]:
    return [f"{vertex.node}{list(vertex.devices) or ''}" for vertex in found.workers(role)]


def test_pack_fills_a_node_before_the_next_and_spread_takes_turns() -> None:
    nodes = fleet_of(node("a", accelerators=4), node("b", accelerators=4))
    assert where(made(job(5, rollout=RoleConfig(accelerators=1)), nodes), "rollout") == [
        "a[0]", "a[1]", "a[2]", "a[3]", "b[0]",
    ]  # fmt: skip
    spread = RoleConfig(accelerators=1, placement="spread")
    assert where(made(job(4, rollout=spread), nodes), "rollout") == ["a[0]", "b[0]", "a[1]", "b[1]"]


def test_spread_counts_failure_domains_before_nodes() -> None:
    """Two nodes of one rack die together."""
    nodes = fleet_of(node("a", domain="rack-1"), node("b", domain="rack-1"), node("c", domain="rack-2"))
    assert where(made(job(4, rollout=RoleConfig(placement="spread")), nodes), "rollout") == ["a", "c", "b", "c"]


def test_so_many_on_each_node_are_placed_together_or_elsewhere() -> None:
    nodes = fleet_of(node("a", accelerators=3), node("b", accelerators=2))
    wanted = job(4, rollout=RoleConfig(accelerators=1, per_node=2), policy=RoleConfig(accelerators=1))
    assert where(made(wanted, nodes), "rollout") == ["a[1]", "a[2]", "b[0]", "b[1]"]
    assert where(made(wanted, nodes), "policy") == ["a[0]"]


def test_devices_that_the_job_names_are_kept_for_whom_it_names_them() -> None:
    nodes = fleet_of(node("a", accelerators=4))
    wanted = job(3, policy=RoleConfig(accelerators=1, devices=((1,),)), rollout=RoleConfig(accelerators=1))
    assert where(made(wanted, nodes), "rollout") == ["a[0]", "a[2]", "a[3]"]
    assert where(made(wanted, nodes), "policy") == ["a[1]"]
    around = job(1, policy=RoleConfig(accelerators=1, devices=((1,),)), rollout=RoleConfig(accelerators=2))
    assert where(made(around, nodes), "rollout") == ["a[0, 2]"]


def test_named_devices_go_on_on_the_next_node_where_they_are_taken() -> None:
    nodes = fleet_of(node("a", accelerators=2), node("b", accelerators=2))
    mapped = RoleConfig(accelerators=1, devices=((0,), (1,), (0,), (1,)))
    assert where(made(job(4, rollout=mapped), nodes), "rollout") == ["a[0]", "a[1]", "b[0]", "b[1]"]


def test_what_a_try_had_taken_is_there_for_the_next() -> None:
    """Two on a node do not fit on the first one: what the first of the two had taken there is given back."""
    small, large = node("a", cpus=3, accelerators=1), node("b", cpus=8, accelerators=2)
    large = msgspec.structs.replace(large, total=msgspec.structs.replace(large.total, memory_gib=80))
    pairs = RoleConfig(cpus=2, accelerators=1, memory_gib=33, per_node=2)
    wanted = job(2, rollout=pairs, policy=RoleConfig(cpus=2, accelerators=1, memory_gib=32))
    found = made(wanted, Inventory(nodes=(small, large)))
    assert where(found, "rollout") == ["b[0]", "b[1]"]
    assert where(found, "policy") == ["a[0]"], "all of it is there: CPUs, memory and the device"


def test_collocated_roles_lie_together_and_divide_their_devices() -> None:
    nodes = fleet_of(node("a", accelerators=4), node("b", accelerators=4))
    group = (CollocateConfig(roles=("rollout", "reward")),)
    wanted = job(4, group, rollout=RoleConfig(accelerators=1), reward=RoleConfig(instances=2, accelerators=2))
    found = made(wanted, nodes)
    assert where(found, "rollout") == ["a[0]", "a[1]", "b[0]", "b[1]"]
    assert where(found, "reward") == ["a[2, 3]", "b[2, 3]"]
    bundles = [bundle.members for bundle in found.bundles if "rollout/0" in bundle.members]
    assert bundles == [("rollout/0", "rollout/1", "reward/0")]


def test_roles_that_share_devices_have_the_same_ones() -> None:
    nodes = fleet_of(node("a", accelerators=4))
    group = (CollocateConfig(roles=("policy", "rollout"), share="device"),)
    found = made(job(4, group, policy=RoleConfig(accelerators=4), rollout=RoleConfig(accelerators=1)), nodes)
    assert where(found, "policy") == ["a[0, 1, 2, 3]"]
    assert where(found, "rollout") == ["a[0]", "a[1]", "a[2]", "a[3]"]
    (shared,) = [bundle for bundle in found.bundles if len(bundle.members) == 5]
    assert shared.resources.accelerators == 4, "what is shared is reserved once"


def test_cpus_of_ones_own_and_those_that_are_left_over() -> None:
    nodes = fleet_of(node("a", cpus=6))
    wanted = job(2, rollout=RoleConfig(cpus=2), reward=RoleConfig(cpus=0.5))
    found = made(wanted, nodes)
    assert found.controller_cpus == (0,)
    assert [vertex.cpus for vertex in found.workers("rollout")] == [(1, 2), (3, 4)]
    assert [vertex.cpus for role in ("policy", "episode", "reward") for vertex in found.workers(role)] == [(5,)] * 3


def test_where_no_cpu_is_left_over_the_others_are_shared() -> None:
    found = made(job(1, rollout=RoleConfig(cpus=3)), fleet_of(node("a", cpus=4)))
    assert [vertex.cpus for vertex in found.workers("rollout")] == [(1, 2, 3)]
    assert [vertex.cpus for vertex in found.workers("policy")] == [(1, 2, 3)]


@pytest.mark.parametrize("cpus", [1, 2])
def test_a_small_machine_has_no_cpu_to_keep(cpus: int) -> None:
    """On two CPUs all workers were bound to one, and the other one stood idle for the most part."""
    found = made(job(), fleet_of(node("a", cpus=cpus)))
    assert found.controller_cpus == ()
    assert {vertex.cpus for vertex in found.vertices} == {tuple(range(cpus))}


def test_a_machine_of_three_keeps_one() -> None:
    found = made(job(), fleet_of(node("a", cpus=3)))
    assert found.controller_cpus == (0,)
    assert {vertex.cpus for vertex in found.vertices} == {(1, 2)}


def test_a_controller_that_runs_elsewhere_needs_no_cpu_of_the_fleet() -> None:
    found = made(job(), Inventory(nodes=(node("a", cpus=2),)))
    assert (found.controller_node, found.controller_cpus) == (None, ())
    assert {vertex.cpus for vertex in found.vertices} == {(0, 1)}


def test_the_default_plan_of_a_job_that_says_nothing_is_one_of_each() -> None:
    found = made(job(2), fleet_of(node("local", cpus=2)))
    assert [vertex.name for vertex in found.vertices] == [
        "policy/0", "rollout/0", "rollout/1", "episode/0", "reward/0",
    ]  # fmt: skip
    assert [(edge.caller, edge.callee) for edge in found.edges] == [
        ("controller", "policy"),
        ("controller", "rollout"),
        ("controller", "episode"),
        ("controller", "reward"),
        ("episode", "rollout"),
    ]


def test_collocated_roles_may_each_name_a_device_of_their_own() -> None:
    nodes = fleet_of(node("a", accelerators=2))
    named = {
        "rollout": RoleConfig(accelerators=1, devices=((0,),)),
        "reward": RoleConfig(accelerators=1, devices=((1,),)),
    }
    found = made(job(1, (CollocateConfig(roles=("rollout", "reward")),), **named), nodes)
    assert (where(found, "rollout"), where(found, "reward")) == (["a[0]"], ["a[1]"])


def test_a_node_that_could_not_take_both_of_two_may_take_the_next_two() -> None:
    """What was tried there and given back is no bundle of it."""
    nodes = fleet_of(node("a", accelerators=4), node("b", accelerators=4))
    mapped = RoleConfig(accelerators=1, per_node=2, devices=((0,), (1,), (2,), (3,)))
    found = made(job(4, policy=RoleConfig(accelerators=1, devices=((1,),)), rollout=mapped), nodes)
    assert where(found, "rollout") == ["b[0]", "b[1]", "a[2]", "a[3]"]


@pytest.mark.parametrize("asked", [{"memory_gib": 40}, {"cpus": 4}])
def test_what_is_taken_is_not_there_for_the_next(asked: dict[str, float]) -> None:
    """W13: what many instances ask for together was never added up."""
    nodes = fleet_of(node("a"), node("b"))
    judges = RoleConfig(command=("true",), instances=2, **asked)
    assert where(made(job(judge=judges), nodes), "judge") == ["a", "b"]


@pytest.mark.parametrize(("cpus", "left"), [(1, 1), (2, 2), (3, 2), (8, 7)])
def test_all_cpus_of_a_small_machine_are_there_for_workers(cpus: int, left: int) -> None:
    one = node("a", cpus=cpus)
    assert for_workers(one, fleet_of(one)).cpus == left


def test_cpus_outside_the_mask_are_not_there() -> None:
    """W20: a container may be allowed fewer than the machine has."""
    masked = node("a", cpus=8)
    masked = msgspec.structs.replace(masked, cpus=masked.cpus[:3])
    assert for_workers(masked, Inventory(nodes=(masked,))).cpus == 3
    assert for_workers(msgspec.structs.replace(masked, cpus=()), Inventory(nodes=(masked,))).cpus == 8


def test_episodes_call_engines_also_where_nothing_else_is_launched() -> None:
    found = plan(job(), fleet_of(node("a")), ("train", "reward"))
    assert isinstance(found, Plan)
    assert Edge(caller="episode", callee="rollout") in found.edges


def test_the_device_behind_the_last_one_of_a_node_is_on_another() -> None:
    """W20: they are numbered from 0."""
    nodes = fleet_of(node("a", accelerators=2), node("b", accelerators=4))
    assert where(made(job(1, rollout=RoleConfig(accelerators=1, devices=((2,),))), nodes), "rollout") == ["b[2]"]
