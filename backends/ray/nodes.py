"""The nodes of a cluster, as Ray tells of them. Plain blocking functions, a millisecond each."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray._private.state import state as cluster_state  # Ray has no public way to ask which nodes are being drained
from ray.util.placement_group import placement_group_table

from protocols.backend import Node, Resources

_GIB = 2**30
_ACCELERATORS = {"GPU": "cuda"}
"""Ray's resource -> what its devices are called."""

_HELD = frozenset({"PREPARED", "CREATED", "RESCHEDULING"})
"""States of a placement group that holds its bundles."""


@dataclass(frozen=True, kw_only=True)
class RayNode:
    """A node that lives. ``id`` is Ray's, and that of no node before or after it; ``name`` is for plans."""

    id: str
    name: str
    total: Resources
    labels: Mapping[str, str]


def living(labels: Mapping[str, str]) -> list[RayNode]:
    """Return the nodes that live, are not being drained, and carry all of these labels, by name.

    A node is named by Ray's name for it, its address unless the operator chose one; where several have the same, by the
    beginning of its id.
    """
    found = [node for node in ray.nodes() if node["Alive"]]
    leaving = draining()
    names = Counter(node["NodeName"] for node in found)
    nodes = [
        RayNode(
            id=node["NodeID"],
            name=node["NodeName"] if names[node["NodeName"]] == 1 else node["NodeID"][:12],
            total=resources_of(node["Resources"]),
            labels=node["Labels"],
        )
        for node in found
        if labels.items() <= node["Labels"].items() and node["NodeID"] not in leaving
    ]
    return sorted(nodes, key=lambda node: node.name)


def draining() -> frozenset[str]:
    """Return Ray's ids of the nodes that are about to be taken away: Ray starts nothing more on them."""
    return frozenset(cluster_state.get_draining_nodes())


def resources_of(resources: Mapping[str, float]) -> Resources:
    """Return resources of Ray in our units."""
    return Resources(
        cpus=resources.get("CPU", 0.0),
        accelerators=int(sum(resources.get(name, 0.0) for name in _ACCELERATORS)),
        memory_gib=resources.get("memory", 0.0) / _GIB,
    )


def bundle_of(resources: Resources) -> dict[str, float]:
    """Return resources in Ray's units; what is not asked for is not named."""
    asked = {"CPU": resources.cpus, "GPU": resources.accelerators, "memory": int(resources.memory_gib * _GIB)}
    return {name: float(amount) for name, amount in asked.items() if amount}


def free_of(nodes: list[RayNode]) -> dict[str, Resources]:
    """Return what no placement group holds, of this job or of others, by Ray's id of the node.

    Ray's own count of what is free lags behind by a moment, in which what was given back is not there yet.
    """
    groups: dict[str, dict[str, Any]] = placement_group_table()
    held: dict[str, list[Resources]] = {node.id: [] for node in nodes}
    for group in groups.values():
        for index, node in group["bundles_to_node_id"].items():
            if group["state"] in _HELD and node in held:
                held[node].append(resources_of(group["bundles"][index]))
    return {node.id: _less(node.total, held[node.id]) for node in nodes}


def _less(total: Resources, held: list[Resources]) -> Resources:
    return Resources(
        cpus=total.cpus - sum(one.cpus for one in held),
        accelerators=total.accelerators - sum(one.accelerators for one in held),
        memory_gib=total.memory_gib - sum(one.memory_gib for one in held),
    )


def node_of(node: RayNode, free: Resources, domain_label: str) -> Node:
    """Return a node as an inventory tells of it. Ray binds nothing to CPUs."""
    device = _ACCELERATORS["GPU"] if node.total.accelerators else "cpu"
    domain = node.labels.get(domain_label, "")
    return Node(name=node.name, total=node.total, free=free, device=device, domain=domain)
