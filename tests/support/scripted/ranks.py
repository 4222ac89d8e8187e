"""Ranks of a trainer without parameters, on nodes some of which are slow or broken."""

from dataclasses import dataclass, field

import anyio
from anyio.lowlevel import checkpoint

from backends.sim.trainer import ScriptedTrainer
from protocols.backend import PayloadPort
from protocols.errors import PeersLost, PortFailed
from protocols.messages import WeightVersion, WorkerId
from protocols.training import CheckReport, CheckRequest, JoinRequest, RankPort, Standing


@dataclass(kw_only=True)
class Cluster:
    """What the nodes are like, and who has met.

    Attributes:
        where: The node of each rank, as it was launched last.
        seconds: How long a check takes on a node; 1 where nothing is said.
        broken: Nodes on which a check fails.
        hung: Nodes on which a check never ends.
        checks: Ranks that were checked together, in order of beginning.
        hosts: Names under which places to meet were offered.
    """

    where: dict[WorkerId, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    hung: set[str] = field(default_factory=set)
    checks: dict[int, list[WorkerId]] = field(default_factory=dict)
    hosts: list[str] = field(default_factory=list)
    versions: dict[tuple[int, int], WeightVersion] = field(default_factory=dict)


class ScriptedRank(ScriptedTrainer):
    """One rank; a step of it is not held up by the others.

    Args:
        name: Its own.
        cluster: Where it is.
        payloads: As for ``ScriptedTrainer``.
    """

    def __init__(self, name: WorkerId, cluster: Cluster, payloads: PayloadPort | None = None) -> None:
        super().__init__(payloads)
        self._name = name
        self._cluster = cluster

    async def contribute(self, to: str) -> WeightVersion:
        """Give nothing: each has all."""
        await checkpoint()
        return self.version

    async def standing(self) -> Standing:
        """Return how far it has come."""
        await checkpoint()
        return Standing(version=self.version, whole=True)

    async def offer(self, host: str) -> str:
        """Take note of the name."""
        await checkpoint()
        self._cluster.hosts.append(host)
        return f"{host or self._cluster.where[self._name]}:1"

    async def join(self, request: JoinRequest) -> None:
        """Take over the version of the source."""
        if request.rank == request.source:
            self._cluster.versions[request.generation, request.source] = self.version
        await anyio.sleep(0.1)
        self.version = self._cluster.versions[request.generation, request.source]

    async def check(self, request: CheckRequest) -> CheckReport:
        """Take as long as its node does; wait for a node that hangs, as those do that exchange with it."""
        together = self._cluster.checks.setdefault(request.trial, [])
        together.append(self._name)
        node = self._cluster.where[self._name]
        if node in self._cluster.hung:
            await anyio.sleep_forever()
        if node in self._cluster.broken:
            await checkpoint()
            raise PortFailed(f"7 of 9 numbers are wrong on {node}")
        await anyio.sleep(self._cluster.seconds.get(node, 1.0))
        others = {self._cluster.where[name] for name in together}
        if len(together) < request.world or others & self._cluster.hung:
            await anyio.sleep(request.patience_s)
            raise PeersLost("nobody came")
        if others & self._cluster.broken:
            raise PeersLost("the connection was closed")
        return CheckReport(compute_s=self._cluster.seconds.get(node, 1.0), exchange_s=0.1)


_: type[RankPort] = ScriptedRank
