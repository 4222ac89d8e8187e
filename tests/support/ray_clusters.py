"""Clusters of several nodes on this machine, each node a raylet with workers of its own."""

import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

from backends import ray as backend
from backends.ray.session import Session, open_session

_FAST = {
    "health_check_initial_delay_ms": 500,
    "health_check_period_ms": 300,
    "health_check_timeout_ms": 500,
    "health_check_failure_threshold": 2,
}
"""A node that is killed is found within half a second instead of fourteen."""

_STORE = 80 * 2**20
_POOLS = count()


class RayCluster:
    """A cluster, and the folder of its sockets.

    Attributes:
        address: For ``[backend] address``.
    """

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self.address: str = cluster.address

    def add_node(self, **options: Any) -> Any:
        """Add a node and wait until the others know it."""
        return self._cluster.add_node(object_store_memory=_STORE, include_dashboard=False, **options)

    def kill_node(self, node: Any) -> None:
        """Kill a node hard, and everything on it."""
        self._cluster.remove_node(node, allow_graceful=False)

    @contextmanager
    def pool(self, **options: Any) -> Generator[dict[str, str]]:
        """Add a node that is alone in having the labels given."""
        labels = {"pool": str(next(_POOLS))}
        node = self.add_node(labels=labels, **options)
        try:
            yield labels
        finally:
            self._cluster.remove_node(node)

    @contextmanager
    def connected(self) -> Generator[Session]:
        """Connect this process."""
        with open_session(backend.Config(address=self.address)) as session:
            yield session


@contextmanager
def open_cluster(*, nodes: int, cpus: int = 2) -> Generator[RayCluster]:
    """Start a cluster; nothing of it is left when the block ends."""
    folder = tempfile.mkdtemp(prefix="rt", dir="/tmp")
    sessions = Path(folder, "ray")
    sessions.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_TMPDIR", folder)  # where it notes which cluster is this machine's
        patch.setenv("PYTHONPATH", os.getcwd())  # noqa: PTH109
        head = {"num_cpus": cpus, "_system_config": _FAST, "temp_dir": str(sessions), "object_store_memory": _STORE}
        cluster = Cluster()
        try:
            cluster.add_node(**head, include_dashboard=False)
            made = RayCluster(cluster)
            for _ in range(nodes - 1):
                made.add_node(num_cpus=cpus)
            yield made
        finally:
            ray.shutdown()
            cluster.shutdown()
            shutil.rmtree(folder, ignore_errors=True)
