"""Every mistake in a job's fleet is named, alone and among others."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.config import CheckConfig, CollocateConfig, FleetConfig, RoleConfig
from conductor.core.planning.plan import plan
from conductor.core.planning.verify import verify
from conductor.validation import find_problems
from protocols.backend import Inventory
from protocols.errors import Problem
from protocols.fleet import Plan
from tests.unit.planning.fleets import fleet_of, job, node

GPUS = fleet_of(node("a", cpus=16, accelerators=4), node("b", cpus=16, accelerators=4))

Mistake = tuple[str, RoleConfig, str, str]
"""The role, what is written of it, the field that is named, and the whole text."""

MISTAKES: dict[str, Mistake] = {
    "unknown role": (
        "rollot",
        RoleConfig(),
        "fleet.roles.rollot",
        (
            "fleet.roles.rollot: no such role; known are policy, rollout, episode, reward, evaluation; did "
            "you mean 'rollout'?"
        ),
    ),
    "unsafe name": (
        "../x",
        RoleConfig(command=("true",)),
        "fleet.roles.../x",
        (
            "fleet.roles.../x: names of workers and of their files are made of it; give another name: small "
            "letters, digits, - and _, a letter first"
        ),
    ),
    "the controller's name": (
        "controller",
        RoleConfig(command=("true",)),
        "fleet.roles.controller",
        (
            "fleet.roles.controller: it is the controller's; give another name: small letters, digits, - and "
            "_, a letter first"
        ),
    ),
    "capacity times instances (W13)": (
        "reward",
        RoleConfig(instances=64, accelerators=1),
        "fleet.roles.reward.accelerators",
        (
            "fleet.roles.reward.accelerators = 1: accelerators for 64 instances of 1: 64, of 8 for workers; "
            "ask for less, or for fewer instances"
        ),
    ),
    "larger than any node": (
        "policy",
        RoleConfig(accelerators=8),
        "fleet.roles.policy.accelerators",
        (
            "fleet.roles.policy.accelerators = 8: accelerators for workers on the largest node: 4; ask for "
            "less, or for fewer instances"
        ),
    ),
    "memory": (
        "policy",
        RoleConfig(memory_gib=65),
        "fleet.roles.policy.memory_gib",
        (
            "fleet.roles.policy.memory_gib = 65: GiB of memory for workers on the largest node: 64; ask for "
            "less, or for fewer instances"
        ),
    ),
    "the controller's CPU": (
        "policy",
        RoleConfig(cpus=17),
        "fleet.roles.policy.cpus",
        (
            "fleet.roles.policy.cpus = 17: CPUs for workers on the largest node: 16; ask for less, or for "
            "fewer instances"
        ),
    ),
    "a device out of range (W20)": (
        "policy",
        RoleConfig(accelerators=1, devices=((4,),)),
        "fleet.roles.policy.devices[0]",
        (
            "fleet.roles.policy.devices[0] = [4]: there is no device 4: the largest node has 4, from 0 to 3; "
            "name one that is there"
        ),
    ),
    "a device shared without saying so": (
        "reward",
        RoleConfig(instances=2, per_node=2, accelerators=1, devices=((1,), (1,))),
        "fleet.roles.reward",
        (
            "fleet.roles.reward: 0 of 2 find a place: reward/1 and reward/0 share device 1 of a without "
            "saying so, and 1 other nodes have no room either; ask for less, or for fewer instances"
        ),
    ),
    "a rank that no instance runs on (W20)": (
        "reward",
        RoleConfig(instances=2, accelerators=1, devices=((0,), (1,), (2,))),
        "fleet.roles.reward.devices",
        ("fleet.roles.reward.devices: it has 3 entries for 2 instances: no instance runs on the last of them; give 2"),
    ),
    "an instance without a device": (
        "reward",
        RoleConfig(instances=2, accelerators=1, devices=((0,),)),
        "fleet.roles.reward.devices",
        "fleet.roles.reward.devices: it has 1 entries for 2 instances: reward/1 has none; give 2",
    ),
    "the same device twice in one instance": (
        "policy",
        RoleConfig(accelerators=2, devices=((1, 1),)),
        "fleet.roles.policy.devices[0]",
        (
            "fleet.roles.policy.devices[0] = [1, 1]: an instance has 2 accelerators; name 2 different ones, "
            "or set accelerators"
        ),
    ),
    "sharing of nothing": (
        "policy",
        RoleConfig(share_devices=True),
        "fleet.roles.policy.share_devices",
        (
            "fleet.roles.policy.share_devices = true: nothing says which devices are shared; name them: "
            "devices = [[0], [0]]"
        ),
    ),
    "instances per node": (
        "reward",
        RoleConfig(instances=3, per_node=2),
        "fleet.roles.reward.per_node",
        "fleet.roles.reward.per_node = 2: 3 instances cannot be divided by it; give a divisor of 3",
    ),
    "more nodes than there are": (
        "reward",
        RoleConfig(instances=3, per_node=1),
        "fleet.roles.reward",
        ("fleet.roles.reward: 2 of 3 find a place: no node is left for 1 more; ask for less, or for fewer instances"),
    ),
    "an instance that is none": (
        "reward",
        RoleConfig(instance_environment={"1": {"A": "x"}}),
        "fleet.roles.reward.instance_environment.1",
        (
            "fleet.roles.reward.instance_environment.1: there is no such instance: they are 0 to 0; give the "
            "number of an instance"
        ),
    ),
    "a variable that is none": (
        "reward",
        RoleConfig(environment={"A=B": "x"}),
        "fleet.roles.reward.environment.A=B",
        (
            "fleet.roles.reward.environment.A=B = 'x': no process takes such a variable; leave out '=' in "
            "its name and zero bytes"
        ),
    ),
    "rollouts counted twice": (
        "rollout",
        RoleConfig(instances=2),
        "fleet.roles.rollout.instances",
        "fleet.roles.rollout.instances = 2: 'engines' says how many there are; set engines = 2",
    ),
    "two policies": (
        "policy",
        RoleConfig(instances=2),
        "fleet.roles.policy.instances",
        (
            "fleet.roles.policy.instances = 2: workers that train together need a process each, and the "
            "backend gives them none; set backend.kind to 'processes', or leave it out"
        ),
    ),
    "a section that is missing": (
        "evaluation",
        RoleConfig(),
        "fleet.roles.evaluation",
        (
            "fleet.roles.evaluation: nothing of it is launched: [evaluation.reward] is missing, or handed "
            "over in code; leave it out"
        ),
    ),
    "what a known role runs": (
        "reward",
        RoleConfig(kind="m:x"),
        "fleet.roles.reward",
        "fleet.roles.reward: [reward] says what it runs; leave out kind and command",
    ),
    "two answers to what it runs": (
        "judge",
        RoleConfig(kind="m:x", command=("a",)),
        "fleet.roles.judge",
        'fleet.roles.judge: it says twice what it runs; give kind = "module:name", or command',
    ),
    "options of nothing": (
        "judge",
        RoleConfig(options={"a": 1}),
        "fleet.roles.judge",
        ("fleet.roles.judge: 'options' are an adapter's, and it names none; give kind = \"module:name\", or command"),
    ),
}


def problems_of(found: Plan | tuple[Problem, ...]) -> tuple[Problem, ...]:
    assert isinstance(found, tuple), "it has a plan"
    return found


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named(name: str) -> None:
    role, config, field, text = MISTAKES[name]
    (problem,) = problems_of(plan(job(**{role: config}), GPUS))
    assert (problem.field, str(problem)) == (field, text)


@pytest.mark.parametrize("role", ["rollout", "reward", "policy"])
def test_without_the_mistake_there_is_a_plan(role: str) -> None:
    assert isinstance(plan(job(**{role: RoleConfig(accelerators=1, cpus=1)}), GPUS), Plan)


def test_workers_with_a_process_each_may_train_one_policy() -> None:
    wanted = job(policy=RoleConfig(instances=2))
    found = plan(wanted, msgspec.structs.replace(GPUS, own_processes=True))
    assert isinstance(found, Plan)
    assert [vertex.name for vertex in found.workers("policy")] == ["policy/0", "policy/1"]
    (problem,) = verify(found, wanted, GPUS)
    assert "a process each" in problem.why, "a plan that was made for another backend"


@given(st.data())
def test_all_mistakes_are_listed_at_once(data: st.DataObject) -> None:
    """W20: who mends one problem and meets the next gives up. One mistake a role, so that none hides another."""
    by_role: dict[str, list[str]] = {}
    for name, (role, *_) in MISTAKES.items():
        by_role.setdefault(role, []).append(name)
    roles = data.draw(st.sets(st.sampled_from(sorted(by_role)), min_size=1))
    planted = [MISTAKES[data.draw(st.sampled_from(by_role[role]))] for role in sorted(roles)]
    found = problems_of(plan(job(**{role: config for role, config, *_ in planted}), GPUS))
    assert sorted(problem.field for problem in found) == sorted(field for _, _, field, _ in planted)


def test_five_planted_mistakes_are_five_problems() -> None:
    planted = ("unknown role", "capacity times instances (W13)", "larger than any node", "rollouts counted twice")
    roles = {MISTAKES[name][0]: MISTAKES[name][1] for name in planted}
    wrong = job(collocate=(CollocateConfig(roles=("episode", "nobody")),), **roles)
    found = problems_of(plan(wrong, GPUS))
    assert len(found) == 5
    assert {problem.field for problem in found} == {
        *(MISTAKES[name][2] for name in planted),
        "fleet.collocate[0].roles",
    }


@pytest.mark.parametrize(
    ("group", "roles", "text"),
    [
        (
            {"roles": ("policy", "critic")},
            {},
            "[0].roles = 'critic': the job launches no such role; name some of episode, policy, reward, rollout",
        ),
        (
            {"roles": ("policy", "policy")},
            {},
            "[0].roles = 'policy': it is named twice; name each role once in all of collocate",
        ),
        (
            {"roles": ("rollout", "reward")},
            {"reward": RoleConfig(instances=3)},
            (
                "[0].roles: its roles are placed in 3 bundles, and rollout has 4 instances, which cannot "
                "be divided by that; give each of them a multiple of the fewest"
            ),
        ),
        (
            {"roles": ("rollout", "reward")},
            {"reward": RoleConfig(placement="spread")},
            (
                "[0].roles: its roles want different values of placement, and lie on the same nodes; "
                "give them one placement"
            ),
        ),
        (
            {"roles": ("rollout", "reward")},
            {"reward": RoleConfig(instances=2, per_node=2), "rollout": RoleConfig(per_node=2)},
            "[0].roles: its roles want different values of per_node, and lie on the same nodes; give them one per_node",
        ),
        (
            {"roles": ("rollout", "reward")},
            {"rollout": RoleConfig(per_node=1)},
            (
                "[0].roles: so many instances on a node are no whole number of bundles; give a multiple "
                "of the instances of one bundle"
            ),
        ),
        (
            {"roles": ("rollout", "reward"), "share": "device"},
            {"rollout": RoleConfig(accelerators=1)},
            "[0].share = 'device': reward asks for no accelerators; set them, or share the node",
        ),
        (
            {"roles": ("rollout", "policy"), "share": "device"},
            {
                "policy": RoleConfig(accelerators=1, devices=((0,),)),
                "rollout": RoleConfig(accelerators=1),
            },
            (
                "[0].share = 'device': policy: it says which devices are shared, and so does 'devices'; "
                "leave out one of the two"
            ),
        ),
        (
            {"roles": ("policy", "rollout")},
            {"rollout": RoleConfig(accelerators=2)},
            (
                " (policy, rollout): 0 of 1 find a place: each asks for 8 accelerators, of which a has 4 "
                "left, and 1 other nodes have no room either; ask for less, or for fewer instances"
            ),
        ),
    ],
)
def test_a_conflict_of_collocated_roles_is_named(
    group: dict[str, Any], roles: dict[str, RoleConfig], text: str
) -> None:
    (problem,) = problems_of(plan(job(4, (CollocateConfig(**group),), **roles), GPUS))
    assert str(problem) == f"fleet.collocate{text}"


def test_a_role_lies_together_with_others_once() -> None:
    groups = (CollocateConfig(roles=("policy", "reward")), CollocateConfig(roles=("reward", "episode")))
    (problem,) = problems_of(plan(job(1, groups), GPUS))
    why = "it lies together with others already; name each role once in all of collocate"
    assert str(problem) == f"fleet.collocate[1].roles = 'reward': {why}"


def test_a_fleet_that_does_not_fit_together_says_what_is_left() -> None:
    """I20, W04: each alone would fit."""
    found = problems_of(plan(job(6, policy=RoleConfig(accelerators=4), rollout=RoleConfig(accelerators=1)), GPUS))
    (problem,) = found
    assert problem.field == "fleet.roles.rollout"
    assert "4 of 6 find a place: each asks for 1 accelerators, of which a has 0 left" in problem.why


def test_a_role_that_finds_no_place_takes_none_from_the_others() -> None:
    """One mistake is one problem."""
    judge = RoleConfig(command=("true",), instances=3, accelerators=2, per_node=1)
    (problem,) = problems_of(plan(job(6, judge=judge, rollout=RoleConfig(accelerators=1)), GPUS))
    assert problem.field == "fleet.roles.judge"


def test_what_is_wrong_without_knowing_the_nodes_is_found_by_validate() -> None:
    """A job is checked long before there are nodes."""
    wrong = job(rollot=RoleConfig(), reward=RoleConfig(instances=3, per_node=2))
    given = {"prompts", "reward", "episode", "engine", "train", "model", "ledger"}
    fields = [problem.field for problem in find_problems(wrong, given=given - {"reward"})]
    assert [field for field in fields if field.startswith("fleet")] == [
        "fleet.roles.rollot",
        "fleet.roles.reward.per_node",
    ]


def test_a_role_of_ones_own_is_checked_like_any_adapter() -> None:
    own = job(judge=RoleConfig(kind="no.such:Thing"), sandbox=RoleConfig(command=("no-such-program-here",)))
    fields = {problem.field: problem for problem in find_problems(own)}
    assert "cannot be imported" in fields["fleet.roles.judge.kind"].why
    assert "no such program" in fields["fleet.roles.sandbox.command"].why


@pytest.mark.parametrize(
    ("nodes", "text"),
    [
        ((), "backend: it has no nodes; name another backend"),
        ((node("a"), node("a")), "backend = 'a': several nodes have this name; give each node a name of its own"),
    ],
)
def test_nodes_that_no_plan_can_name_are_refused(nodes: tuple[Any, ...], text: str) -> None:
    (problem,) = problems_of(plan(job(), Inventory(nodes=nodes)))
    assert str(problem) == text


def test_a_fleet_without_accelerators_ignores_the_map_of_devices() -> None:
    """The same job runs on a laptop: the device type is detected, and on a CPU there is nothing to map."""
    mapped = job(4, rollout=RoleConfig(accelerators=1, devices=((0,), (0,), (1,), (9,)), share_devices=True))
    found = plan(mapped, fleet_of(node("laptop", cpus=2)))
    assert isinstance(found, Plan)
    assert {vertex.device for vertex in found.vertices} == {"cpu"}
    assert not any(vertex.devices for vertex in found.vertices)
    assert all(bundle.resources.accelerators == 0 for bundle in found.bundles)


def test_devices_may_be_shared_when_the_job_says_so() -> None:
    shared = RoleConfig(accelerators=1, devices=((0,), (0,), (1,), (1,)), share_devices=True)
    found = plan(job(4, rollout=shared), fleet_of(node("a", accelerators=2)))
    assert isinstance(found, Plan)
    assert [vertex.devices for vertex in found.workers("rollout")] == [(0,), (0,), (1,), (1,)]
    assert sum(bundle.resources.accelerators for bundle in found.bundles) == 2, "each is reserved once"


def test_the_environment_is_layered_job_role_instance() -> None:
    layered = job(
        2, rollout=RoleConfig(environment={"B": "role", "C": "role"}, instance_environment={"1": {"C": "instance"}})
    )
    fleet = FleetConfig(environment={"A": "job", "B": "job", "C": "job"}, roles=layered.fleet.roles)
    found = plan(msgspec.structs.replace(layered, fleet=fleet), GPUS)
    assert isinstance(found, Plan)
    first, second = found.workers("rollout")
    assert first.environment == {"A": "job", "B": "role", "C": "role"}
    assert second.environment == {"A": "job", "B": "role", "C": "instance"}
    assert found.workers("policy")[0].environment == {"A": "job", "B": "job", "C": "job"}


def test_workloads_that_are_handed_over_are_not_placed() -> None:
    found = plan(job(), GPUS, given={"train", "engine"})
    assert isinstance(found, Plan)
    assert {vertex.role for vertex in found.vertices} == {"episode", "reward"}
    assert {edge.callee for edge in found.edges} == {"episode", "reward"}


def test_a_variable_of_the_whole_fleet_that_no_process_takes_is_named() -> None:
    wrong = msgspec.structs.replace(job(), fleet=FleetConfig(environment={"A=B": "1"}))
    found = plan(wrong, fleet_of(node("a")))
    assert not isinstance(found, Plan)
    assert [problem.field for problem in found] == ["fleet.environment.A=B"]


@pytest.mark.parametrize("given_in_code", [False, True])
def test_there_must_be_two_ranks_whose_nodes_are_compared(given_in_code: bool) -> None:
    cfg = job(policy=RoleConfig(instances=2))
    cfg = msgspec.structs.replace(cfg, fleet=msgspec.structs.replace(cfg.fleet, check=CheckConfig()))
    alone = msgspec.structs.replace(cfg, fleet=FleetConfig(check=CheckConfig()))
    inventory = msgspec.structs.replace(GPUS, own_processes=True)
    assert isinstance(plan(cfg, inventory), Plan)
    problems = plan(alone, inventory, ["train"] if given_in_code else [])
    assert not isinstance(problems, Plan)
    assert str(problems[0]) == (
        f"fleet.check: nodes are checked by the ranks of policy in pairs, and the job launches "
        f"{'none' if given_in_code else '1'}; leave it out, or set fleet.roles.policy.instances"
    )
