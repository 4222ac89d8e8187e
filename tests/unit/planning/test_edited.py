"""An edited plan is checked as strictly as the planner is: what may be moved may be moved, all else is named."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.config import CollocateConfig, RoleConfig, RunConfig
from conductor.core.planning.plan import plan
from conductor.core.planning.verify import verify
from protocols.backend import Inventory
from protocols.fleet import Plan
from protocols.sections import Section
from tests.unit.planning.fleets import fleet_of, job, node

NODES = fleet_of(node("a", cpus=8, accelerators=4), node("b", cpus=8, accelerators=4))
JOB = job(
    4,
    (CollocateConfig(roles=("episode", "reward")),),
    rollout=RoleConfig(accelerators=1, cpus=1, placement="spread"),
    policy=RoleConfig(accelerators=1),
    judge=RoleConfig(command=("true",), memory_gib=40),
)
Edit = Callable[[dict[str, Any]], object]


def made(wanted: RunConfig = JOB, inventory: Inventory = NODES) -> Plan:
    found = plan(wanted, inventory)
    assert isinstance(found, Plan), found
    return found


def edited(edit: Edit, base: Plan | None = None) -> Plan:
    """Return the plan as somebody edits its file."""
    values = msgspec.json.decode(msgspec.json.encode(base or made()))
    edit(values)
    return msgspec.convert(values, Plan)


def worker(values: dict[str, Any], name: str) -> dict[str, Any]:
    return next(vertex for vertex in values["vertices"] if vertex["name"] == name)


def put(name: str, **fields: Any) -> Edit:
    return lambda values: worker(values, name).update(fields)


def rank(name: str, **ranks: int) -> Edit:
    return lambda values: worker(values, name)["ranks"].update(ranks)


def bundle(name: str, **fields: Any) -> Edit:
    return lambda values: next(one for one in values["bundles"] if one["name"] == name).update(fields)


def without(name: str) -> Edit:
    def remove(values: dict[str, Any]) -> None:
        values["vertices"] = [vertex for vertex in values["vertices"] if vertex["name"] != name]
        for number, vertex in enumerate(sorted(values["vertices"], key=lambda one: one["ranks"]["world"])):
            vertex["ranks"]["world"] = number

    return remove


EDITS: dict[str, tuple[Edit, str, str]] = {
    "a node that is not there": (
        put("judge/0", node="c"),
        "judge/0.node",
        "judge/0.node = 'c': there is no such node; name one of a, b",
    ),
    "a device out of range (W20)": (
        put("policy/0", devices=[4]),
        "policy/0.devices",
        "policy/0.devices = [4]: a has no device 4: it has 4; name one that is there",
    ),
    "too few devices": (
        put("rollout/3", devices=[], device="cpu"),
        "rollout/3.devices",
        "rollout/3.devices = []: rollout has 1 accelerators; name 1 different ones",
    ),
    "a device shared without saying so": (
        put("rollout/2", devices=[0]),
        "rollout/2.devices",
        (
            "rollout/2.devices = [0]: rollout/0 has device 0 of a as well, and the job does not say so; give "
            "it another one, or say in the job that they share"
        ),
    ),
    "a device that is called otherwise": (
        put("policy/0", device="rocm"),
        "policy/0.device",
        "policy/0.device = 'rocm': on a it is 'cuda'; set it to 'cuda'",
    ),
    "a failure domain that is none": (
        put("judge/0", domain="rack"),
        "judge/0.domain",
        "judge/0.domain = 'rack': on a it is 'a'; set it to 'a'",
    ),
    "the controller's CPU": (
        put("reward/0", cpus=[0, 1]),
        "reward/0.cpus",
        "reward/0.cpus = [0, 1]: CPU 0 is the controller's; leave it out",
    ),
    "a CPU outside the mask": (
        put("reward/0", cpus=[7, 8]),
        "reward/0.cpus",
        ("reward/0.cpus = [7, 8]: CPU 8 is none that may be used on a; choose from [0, 1, 2, 3, 4, 5, 6, 7]"),
    ),
    "no CPU": (
        put("reward/0", cpus=[]),
        "reward/0.cpus",
        "reward/0.cpus = []: it needs 1; name as many different ones",
    ),
    "the CPU of another": (
        put("rollout/2", cpus=[1]),
        "rollout/2.cpus",
        "rollout/2.cpus = [1]: CPU 1 is rollout/0's, and both are to have theirs alone; give it another",
    ),
    "no CPU for the controller": (
        lambda v: v.update(controller_cpus=[]),
        "controller_cpus",
        "controller_cpus = []: the controller needs a CPU that no worker computes on; name one",
    ),
    "a CPU for the controller that is none": (
        lambda v: v.update(controller_cpus=[9]),
        "controller_cpus",
        "controller_cpus = [9]: CPU 9 is none that may be used there; choose one that may",
    ),
    "another node of the controller": (
        lambda v: v.update(controller_node="b"),
        "controller_node",
        "controller_node = 'b': the controller runs on 'a'; set it to 'a'",
    ),
    "another adapter": (
        put("reward/0", adapter={"kind": "x"}),
        "reward/0.adapter",
        "reward/0.adapter: the job says otherwise; a plan says where; change the job, and plan it anew",
    ),
    "another environment": (
        put("reward/0", environment={"A": "1"}),
        "reward/0.environment",
        ("reward/0.environment: the job says otherwise; a plan says where; change the job, and plan it anew"),
    ),
    "another section": (
        put("reward/0", section="engine"),
        "reward/0.section",
        "reward/0.section: the job says otherwise; a plan says where; change the job, and plan it anew",
    ),
    "another bundle": (
        put("reward/0", bundle="x"),
        "reward/0.bundle",
        "reward/0.bundle = 'x': the job places it in episode/0; set it to 'episode/0'",
    ),
    "a bundle of other workers": (
        bundle("policy/0", members=["x"]),
        "bundles.policy/0.members",
        "bundles.policy/0.members = ('x',): its workers make it ('policy/0',); set it to that",
    ),
    "a bundle of other resources": (
        bundle("policy/0", resources={"accelerators": 0}),
        "bundles.policy/0.resources",
        (
            "bundles.policy/0.resources = Resources(cpus=0.0, accelerators=0, memory_gib=0.0): its workers "
            "make it Resources(cpus=0.0, accelerators=1, memory_gib=0.0); set it to that"
        ),
    ),
    "a bundle on another node": (
        bundle("policy/0", node="b"),
        "bundles.policy/0.node",
        "bundles.policy/0.node = b: its workers make it a; set it to that",
    ),
    "a bundle that is gone": (
        lambda v: v["bundles"].pop(),
        "bundles.episode/0",
        "bundles.episode/0: the plan does not have it once; set it as in a plan made anew",
    ),
    "other calls": (
        lambda v: v["edges"].pop(),
        "edges",
        "edges: others call one another in this job; a plan says where; change the job, and plan it anew",
    ),
    "another role": (
        lambda v: v["roles"][0].update(instances=2),
        "roles.judge",
        "roles.judge: the job describes it otherwise; a plan says where; change the job, and plan it anew",
    ),
    "a role that is gone": (
        lambda v: v["roles"].pop(),
        "roles",
        (
            "roles = judge, policy, rollout, episode: the job has others; a plan says where; change the job, "
            "and plan it anew"
        ),
    ),
    "a gap in the ranks (W16)": (
        rank("rollout/3", world=9),
        "ranks.world",
        (
            "ranks.world: the world ranks are 0, 1, 2, 3, 4, 5, 6, 9: 7 is nobody's; number the 8 workers "
            "from 0 without a gap"
        ),
    ),
    "a rank at odds with the world rank": (
        rank("rollout/2", role=3),
        "rollout/2.ranks.role",
        "rollout/2.ranks.role = 3: by its world rank, 1, it is 1; set it to 1",
    ),
    "another node rank": (
        rank("rollout/3", node=0),
        "rollout/3.ranks.node",
        "rollout/3.ranks.node = 0: by its world rank, 7, it is 1; set it to 1",
    ),
    "another local rank": (
        rank("rollout/3", local=0),
        "rollout/3.ranks.local",
        "rollout/3.ranks.local = 0: by its world rank, 7, it is 1; set it to 1",
    ),
    "a worker that is missing: a rank nobody runs with (W20)": (
        without("rollout/3"),
        "rollout/3",
        (
            "rollout/3: the job has this worker and the plan has not: nobody runs with its rank; a plan says "
            "where; change the job, and plan it anew"
        ),
    ),
}


def test_what_the_planner_makes_passes() -> None:
    assert verify(made(), JOB, NODES) == ()


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_that_cannot_be_is_named(name: str) -> None:
    edit, field, text = EDITS[name]
    found = verify(edited(edit), JOB, NODES)
    assert {problem.field for problem in found} == {field}
    assert "\n".join(map(str, found)) == text


_APART = (
    "a device that is called otherwise",
    "a failure domain that is none",
    "the CPU of another",
    "no CPU for the controller",
    "another adapter",
    "another bundle",
    "a bundle of other resources",
    "other calls",
    "another role",
    "another node rank",
    "a rank at odds with the world rank",
)


@given(st.sets(st.sampled_from(_APART), min_size=1))
def test_all_edits_that_cannot_be_are_listed_at_once(names: set[str]) -> None:
    """Five planted mistakes are five problems."""

    def edit(values: dict[str, Any]) -> None:
        for name in names:
            EDITS[name][0](values)

    found = [problem.field for problem in verify(edited(edit), JOB, NODES)]
    assert sorted(found) == sorted(EDITS[name][1] for name in names)


def test_a_worker_that_the_job_has_not_is_named_and_so_is_one_that_is_there_twice() -> None:
    def edit(values: dict[str, Any]) -> None:
        extra = {**worker(values, "rollout/3"), "name": "../rollout"}
        again = worker(values, "judge/0")
        for number, vertex in enumerate((extra, again)):
            ranks = {**vertex["ranks"], "world": len(values["vertices"]) + number}
            values["vertices"] = [*values["vertices"], {**vertex, "ranks": ranks}]

    found = {problem.field: str(problem) for problem in verify(edited(edit), JOB, NODES)}
    anew = "a plan says where; change the job, and plan it anew"
    assert found["../rollout"] == f"../rollout: the job has no such worker; {anew}"
    assert found["judge/0"] == "judge/0: the plan has 2 workers of this name; leave one"


def test_workers_may_be_moved_to_other_cpus_devices_and_ranks() -> None:
    """The point of editing: a rank moved and a CPU set changed are launched as they stand."""

    def edit(values: dict[str, Any]) -> None:
        worker(values, "rollout/0")["devices"] = [1]
        worker(values, "rollout/2")["devices"] = [0]
        worker(values, "rollout/0")["cpus"] = [5]
        for kind in ("world", "role", "local"):
            one, other = worker(values, "rollout/0")["ranks"], worker(values, "rollout/2")["ranks"]
            one[kind], other[kind] = other[kind], one[kind]

    assert verify(edited(edit), JOB, NODES) == ()


def test_ranks_that_go_against_the_devices_are_refused() -> None:
    """W16: ranks go by node, then by device, for all who read them."""

    def edit(values: dict[str, Any]) -> None:
        worker(values, "rollout/0")["devices"] = [1]
        worker(values, "rollout/2")["devices"] = [0]

    (problem,) = verify(edited(edit), JOB, NODES)
    why = "rollout/0 comes before it, and ranks go by node, then by device; exchange it with rollout/0's"
    assert str(problem) == f"rollout/2.ranks.world = 1: {why}"


def test_a_node_that_is_too_full_is_named() -> None:
    """W13: what the workers of a node ask for is added up again."""
    wanted = job(1, judge=RoleConfig(command=("true",), instances=2, memory_gib=40, cpus=4))

    def edit(values: dict[str, Any]) -> None:
        worker(values, "judge/1").update(node="a", domain="a")
        for one in values["bundles"]:
            one["node"] = "a"

    found = verify(edited(edit, made(wanted)), wanted, NODES)
    asked = {str(problem) for problem in found if problem.field == "nodes.a"}
    assert asked == {
        "nodes.a: its workers ask for 80 GiB of memory, and it has 64 for them; move some to another node",
        "nodes.a: its workers ask for 8 CPUs, and it has 7 for them; move some to another node",
    }


def test_a_bundle_that_is_torn_apart_is_named() -> None:
    def edit(values: dict[str, Any]) -> None:
        worker(values, "reward/0").update(node="b", domain="b")

    found = {problem.field: str(problem) for problem in verify(edited(edit), JOB, NODES)}
    why = "episode/0 lies on a, and they are to lie together; move one of them"
    assert found["reward/0.node"] == f"reward/0.node = 'b': {why}"


def test_devices_of_a_bundle_that_shares_them_stay_shared() -> None:
    group = CollocateConfig(roles=("policy", "rollout"), share="device")
    wanted = job(2, (group,), policy=RoleConfig(accelerators=2), rollout=RoleConfig(accelerators=1))
    assert verify(made(wanted), wanted, NODES) == ()
    found = verify(edited(put("rollout/1", devices=[3]), made(wanted)), wanted, NODES)
    why = "rollout uses [0, 3] and policy [0, 1], and they are to share devices; give both the same"
    assert f"bundles.policy/0: {why}" in [str(problem) for problem in found]
    both = verify(edited(put("rollout/1", devices=[0]), made(wanted)), wanted, NODES)
    assert [problem.field for problem in both] == ["rollout/1.devices"], "two engines on one are not what it says"


def test_two_bundles_share_no_device() -> None:
    group = CollocateConfig(roles=("rollout", "reward"), share="device")
    wanted = job(2, (group,), rollout=RoleConfig(accelerators=1), reward=RoleConfig(instances=2, accelerators=1))

    def exchange(values: dict[str, Any]) -> None:
        one, other = worker(values, "rollout/0"), worker(values, "rollout/1")
        one["devices"], other["devices"] = other["devices"], one["devices"]

    fields = {problem.field for problem in verify(edited(exchange, made(wanted)), wanted, NODES)}
    assert fields >= {"reward/0.devices", "reward/1.devices", "bundles.rollout/0", "bundles.rollout/1"}


def test_so_many_on_each_node_holds_in_an_edited_plan() -> None:
    wanted = job(4, rollout=RoleConfig(per_node=2), judge=RoleConfig(command=("true",)))

    def edit(values: dict[str, Any]) -> None:
        worker(values, "rollout/3").update(node="a", domain="a")
        bundle("rollout/3", node="a")(values)

    found = {problem.field: str(problem) for problem in verify(edited(edit, made(wanted)), wanted, NODES)}
    assert found["nodes.a"] == "nodes.a: 3 of rollout are on it, and the job wants 2 on each of its nodes; move some"


def test_a_plan_of_another_job_is_refused() -> None:
    """A stale plan file beside a job that has changed."""
    other = msgspec.structs.replace(JOB, reward=Section(kind="function", options={"function": "new.py:reward"}))
    assert [problem.field for problem in verify(made(), other, NODES)] == ["reward/0.adapter"]
    fields = {problem.field for problem in verify(made(), msgspec.structs.replace(JOB, engines=5), NODES)}
    assert {"rollout/4", "roles.rollout"} <= fields


def test_a_job_that_is_wrong_itself_is_told_first() -> None:
    wrong = msgspec.structs.replace(JOB, fleet=msgspec.structs.replace(JOB.fleet, roles={"x": RoleConfig()}))
    assert [problem.field for problem in verify(made(), wrong, NODES)] == ["fleet.roles.x", "fleet.collocate[0].roles"][
        :1
    ]


def test_a_node_that_is_exactly_full_is_not_too_full() -> None:
    wanted = job(1, judge=RoleConfig(command=("true",), memory_gib=64))
    assert verify(made(wanted), wanted, NODES) == ()
