"""Clusters of several nodes on this machine, each node a raylet with workers of its own."""

import shutil
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import ray
from ray._raylet import GcsClient  # pyright: ignore[reportAttributeAccessIssue] - what `ray drain-node` does, hidden
from ray.cluster_utils import Cluster
from ray.core.generated import autoscaler_pb2

from backends import ray as backend
from backends.ray.session import Session, environment, open_session

_FAST = {
    "health_check_initial_delay_ms": 500,
    "health_check_period_ms": 300,
    "health_check_timeout_ms": 10_000,
    "health_check_failure_threshold": 3,
}
"""A node that is killed is found within a second instead of fourteen: whoever asks it is refused at once.

One that is only slow may take its time. With half a second for an answer a busy machine lost nodes that lived.
"""

_STORE = 80 * 2**20
_POOLS = count()


class Pool:
    """Nodes that are alone in having the labels given.

    Attributes:
        labels: For ``[backend] labels``.
    """

    def __init__(self, cluster: "RayCluster", labels: dict[str, str]) -> None:
        self._cluster = cluster
        self._nodes: list[Any] = []
        self.labels = labels

    def add(self, **options: Any) -> str:
        """Add a node; returns its name as an inventory has it, where several nodes have one address."""
        node = self._cluster.add_node(labels=self.labels, **options)
        self._nodes.append(node)
        return str(node.node_id)[:12]

    def kill(self, name: str) -> None:
        """Kill a node hard, and everything on it."""
        (node,) = [node for node in self._nodes if str(node.node_id).startswith(name)]
        self._nodes.remove(node)
        self._cluster.kill_node(node)

    def drain(self, name: str, within_s: float) -> None:
        """Give notice that a node will be taken away."""
        (node,) = [node for node in self._nodes if str(node.node_id).startswith(name)]
        self._cluster.drain_node(node, within_s)

    def close(self) -> None:
        """Remove those that are left."""
        for node in self._nodes:
            self._cluster.remove_node(node)


class RayCluster:
    """A cluster, and the folder of its sockets.

    Attributes:
        address: For ``[backend] address``.
    """

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self.address: str = cluster.address

    def add_node(self, *, object_store_memory: int = _STORE, **options: Any) -> Any:
        """Add a node and wait until the others know it."""
        return self._cluster.add_node(object_store_memory=object_store_memory, include_dashboard=False, **options)

    def drain_node(self, node: Any, within_s: float) -> None:
        """Give notice that a node will be taken away, as a cloud's agent does; it is not taken away here."""
        reasons = autoscaler_pb2.DrainNodeReason  # pyright: ignore[reportAttributeAccessIssue]
        reason = reasons.Value("DRAIN_NODE_REASON_PREEMPTION")
        deadline_ms = int((time.time() + within_s) * 1000)
        accepted, why = GcsClient(address=self.address).drain_node(node.node_id, reason, "preempted", deadline_ms)
        assert accepted, why

    def kill_node(self, node: Any) -> None:
        """Kill a node hard, and everything on it."""
        self._cluster.remove_node(node, allow_graceful=False)

    def remove_node(self, node: Any) -> None:
        """End a node."""
        self._cluster.remove_node(node)

    @contextmanager
    def pool(self, nodes: int = 1, **options: Any) -> Generator[Pool]:
        """Add nodes that are alone in having their labels; what is left of them ends with the block."""
        pool = Pool(self, {"pool": str(next(_POOLS))})
        try:
            for _ in range(nodes):
                pool.add(**options)
            yield pool
        finally:
            pool.close()

    @contextmanager
    def connected(self) -> Generator[Session]:
        """Connect this process."""
        with open_session(backend.Config(address=self.address)) as session:
            yield session


@contextmanager
def open_cluster(*, nodes: int, cpus: int = 2, store: int = _STORE) -> Generator[RayCluster]:
    """Start a cluster; nothing of it is left when the block ends."""
    folder = tempfile.mkdtemp(prefix="rt", dir="/tmp")  # short: sockets lie beneath it
    sessions = Path(folder, "ray")
    sessions.mkdir()
    variables = {
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_memory_monitor_refresh_ms": "0",  # else what others on this machine use ends workers of ours
        "RAY_worker_niceness": "0",  # else whoever else computes on this machine goes first
        "RAY_TMPDIR": folder,  # where it notes which cluster is this machine's
        "PYTHONPATH": str(Path.cwd()),
    }
    with environment(variables):
        head = {"num_cpus": cpus, "_system_config": _FAST, "temp_dir": str(sessions), "object_store_memory": store}
        cluster = Cluster()
        try:
            cluster.add_node(**head, include_dashboard=False)
            made = RayCluster(cluster)
            for _ in range(nodes - 1):
                made.add_node(num_cpus=cpus, object_store_memory=store)
            yield made
        finally:
            ray.shutdown()
            cluster.shutdown()
            shutil.rmtree(folder, ignore_errors=True)
