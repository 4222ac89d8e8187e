"""Plans in which workers that are lost are given another place."""

from typing import cast

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from conductor.config import CollocateConfig, FleetConfig, RoleConfig, RunConfig
from conductor.core.planning.plan import plan
from conductor.core.planning.scaling import moved
from conductor.core.planning.verify import verify
from protocols.backend import Inventory
from protocols.errors import Problem
from protocols.fleet import Plan
from protocols.messages import WorkerId
from tests.unit.planning.fleets import fleet_of, inventories, job, jobs, node
from tests.unit.planning.test_scaling import planned, while_it_runs

TWO = fleet_of(node("a", cpus=8, accelerators=2), node("b", cpus=8, accelerators=2))
ENGINE = WorkerId("rollout/0")


def elsewhere(
    cfg: RunConfig, made: Plan, inventory: Inventory, *workers: WorkerId, avoid: str = "a"
) -> Plan | tuple[Problem, ...]:
    return moved(made, cfg, while_it_runs(made, inventory), workers=workers, avoid={avoid})


def test_a_worker_gets_what_another_node_has_left_and_nobody_else_is_moved() -> None:
    cfg = job(engines=2, rollout=RoleConfig(cpus=2, accelerators=1), reward=RoleConfig(cpus=1))
    before = planned(cfg, TWO)
    after = elsewhere(cfg, before, TWO, ENGINE)
    assert isinstance(after, Plan)
    old, new = before.workers("rollout")[0], after.workers("rollout")[0]
    assert (old.node, new.node, new.domain, new.devices, len(new.cpus)) == ("a", "b", "b", (0,), 2)
    assert (new.ranks.world, new.ranks.role) == (old.ranks.world, old.ranks.role), "ranks are names as well"
    assert (new.name, new.environment, new.adapter, new.bundle) == (old.name, old.environment, old.adapter, old.bundle)
    assert [one for one in after.vertices if one != new] == [one for one in before.vertices if one != old]
    (bundle,) = [one for one in after.bundles if one.name == new.bundle]
    assert (bundle.node, bundle.members) == ("b", (ENGINE,))
    assert after.roles == before.roles


def test_several_find_room_beside_one_another() -> None:
    cfg = job(engines=2, rollout=RoleConfig(accelerators=1))
    after = elsewhere(cfg, planned(cfg, TWO), TWO, ENGINE, WorkerId("rollout/1"))
    assert isinstance(after, Plan)
    assert [(one.node, one.devices) for one in after.workers("rollout")] == [("b", (0,)), ("b", (1,))]


def test_a_whole_domain_is_avoided() -> None:
    inventory = fleet_of(node("a", domain="rack"), node("b", domain="rack"), node("c", domain="other"))
    cfg = job()
    after = elsewhere(cfg, planned(cfg, inventory), inventory, ENGINE, avoid="rack")
    assert isinstance(after, Plan)
    assert after.workers("rollout")[0].node == "c"


def test_where_there_is_no_room_elsewhere_it_is_refused() -> None:
    full = fleet_of(node("a", cpus=8, accelerators=2), node("b", cpus=2))
    cfg = job(rollout=RoleConfig(accelerators=1))
    problems = elsewhere(cfg, planned(cfg, full), full, ENGINE)
    assert isinstance(problems, tuple)
    assert "b has 0 left" in str(problems[0])


@pytest.mark.parametrize(
    "roles",
    [
        pytest.param({"rollout": RoleConfig(devices=((0,), (1,)), accelerators=1)}, id="devices by number"),
        pytest.param({"rollout": RoleConfig(per_node=2)}, id="so many on each node"),
    ],
)
def test_who_lies_where_the_job_says_stays_there(roles: dict[str, RoleConfig]) -> None:
    cfg = job(engines=2, **roles)
    (problem,) = cast("tuple[Problem, ...]", elsewhere(cfg, planned(cfg, TWO), TWO, ENGINE))
    why = "the job says where it lies: with others, so many on each node, or on devices by number; leave that open"
    assert str(problem) == f"fleet.roles.rollout: {why}"


def test_who_lies_together_with_others_stays_there() -> None:
    cfg = job(engines=2)
    fleet = FleetConfig(collocate=(CollocateConfig(roles=("rollout", "reward"), share="node"),))
    cfg = msgspec.structs.replace(cfg, fleet=fleet)
    problems = elsewhere(cfg, planned(cfg, TWO), TWO, ENGINE)
    assert isinstance(problems, tuple)
    assert "with others" in str(problems[0])


@given(jobs(), inventories(), st.data())
def test_whoever_moves_fits_where_it_is_put(cfg: RunConfig, inventory: Inventory, data: st.DataObject) -> None:
    """The plan after a move keeps to all rules that a plan is checked by, but for ranks, which have gaps."""
    before = plan(cfg, inventory)
    assume(isinstance(before, Plan))
    assert isinstance(before, Plan)
    worker = data.draw(st.sampled_from([one for one in before.vertices if one.role != "policy"]))
    after = elsewhere(cfg, before, inventory, worker.name, avoid=worker.domain)
    if not isinstance(after, Plan):
        return
    (new,) = [one for one in after.vertices if one.name == worker.name]
    assert new.domain != worker.domain
    others = {one.name: one for one in before.vertices if one.name != worker.name}
    assert {one.name: one for one in after.vertices if one.name != worker.name} == others
    wrong = [one for one in verify(after, cfg, inventory) if "rank" not in one.field]
    assert not wrong
