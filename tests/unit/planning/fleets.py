"""Jobs and nodes to plan, by hand and drawn at random."""

from typing import Any

import msgspec
from hypothesis import strategies as st

from conductor.config import CollocateConfig, FleetConfig, RoleConfig, RunConfig
from protocols.backend import Inventory, Node, Resources
from protocols.sections import Section
from tests.support.runs import run_config

ROLES = ("policy", "rollout", "episode", "reward", "judge")


def job(engines: int = 1, collocate: tuple[CollocateConfig, ...] = (), **roles: RoleConfig) -> RunConfig:
    """Return a job with these roles."""
    fleet = FleetConfig(roles=roles, collocate=collocate)
    return run_config(engines=engines, reward=Section(kind="function"), fleet=fleet)


def node(name: str = "local", cpus: int = 8, accelerators: int = 0, **facts: Any) -> Node:
    """Return a node with so many CPUs, numbered from 0, and 64 GiB of memory."""
    total = Resources(cpus=cpus, accelerators=accelerators, memory_gib=64)
    device = "cuda" if accelerators else "cpu"
    base = Node(name=name, total=total, free=total, device=device, cpus=tuple(range(cpus)))
    return msgspec.structs.replace(base, **facts)


def fleet_of(*nodes: Node) -> Inventory:
    """Return an inventory whose first node is the controller's."""
    return Inventory(nodes=nodes, controller=nodes[0].name)


@st.composite
def inventories(draw: st.DrawFn) -> Inventory:
    """One to four nodes in one to three domains; the operator's mask may have gaps, or be unknown."""
    nodes: list[Node] = []
    for number in range(draw(st.integers(1, 4))):
        mask = tuple(sorted(draw(st.sets(st.integers(0, 20), min_size=1, max_size=12))))
        one = node(f"n{number}", cpus=len(mask), accelerators=draw(st.sampled_from([0, 0, 1, 2, 4, 8])))
        domain = draw(st.sampled_from(["", "rack-a", "rack-b"]))
        nodes.append(msgspec.structs.replace(one, cpus=draw(st.sampled_from([mask, mask, ()])), domain=domain))
    return Inventory(nodes=tuple(nodes), controller=draw(st.sampled_from([None, *(one.name for one in nodes)])))


@st.composite
def _roles(draw: st.DrawFn, instances: int) -> dict[str, Any]:
    return {
        "cpus": draw(st.sampled_from([0.0, 0.0, 0.5, 1.0, 2.0, 1.5])),
        "accelerators": draw(st.sampled_from([0, 0, 1, 2])),
        "memory_gib": draw(st.sampled_from([0.0, 4.0])),
        "placement": draw(st.sampled_from(["pack", "spread"])),
        "per_node": draw(st.sampled_from([None, None, *(n for n in (1, 2) if instances % n == 0)])),
        "environment": draw(st.dictionaries(st.sampled_from("AB"), st.sampled_from("xy"), max_size=2)),
    }


@st.composite
def jobs(draw: st.DrawFn) -> RunConfig:
    """Jobs with nothing wrong in themselves, with and without collocation; they may be too large for a fleet."""
    engines = draw(st.integers(1, 6))
    counts = {"policy": 1, "rollout": engines, "reward": draw(st.integers(1, 3)), "judge": draw(st.integers(1, 2))}
    roles: dict[str, RoleConfig] = {}
    for name in draw(st.sets(st.sampled_from(sorted(counts)))):
        fields = draw(_roles(counts[name]))
        if name == "judge":
            fields["command"] = ("judge",)
        if name not in {"rollout", "policy"}:
            fields["instances"] = counts[name]
        roles[name] = RoleConfig(**fields)
    collocate: tuple[CollocateConfig, ...] = ()
    if {"policy", "rollout"} <= roles.keys() and draw(st.booleans()):
        together = {"placement": "pack", "per_node": None, "accelerators": draw(st.sampled_from([1, 2]))}
        for name in ("policy", "rollout"):
            roles[name] = msgspec.structs.replace(roles[name], **together)
        collocate = (CollocateConfig(roles=("policy", "rollout"), share=draw(st.sampled_from(["node", "device"]))),)
    return job(engines, collocate, **roles)
