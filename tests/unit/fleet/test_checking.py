"""Nodes are tried in pairs over the calls of their ranks: within a deadline, and with the names of who failed."""

import anyio
import pytest
from anyio.lowlevel import checkpoint

from backends.sim.faults import Faults
from backends.sim.launcher import SimLauncher
from conductor.config import CheckConfig
from conductor.core.node_check import Findings
from conductor.fleet.checking import NodeCheck, units_of
from conductor.fleet.group import spec_of
from protocols.backend import Ranks, WorkloadSpec
from protocols.errors import InvariantError
from protocols.faults import Fault, FaultPlan
from protocols.fleet import Vertex
from protocols.inference import InferenceControllerPort
from protocols.messages import WorkerId
from protocols.sections import Section, Site
from protocols.simulation import Observed
from protocols.training import RankPort
from protocols.wire import client
from tests.support.scripted.ranks import Cluster, ScriptedRank

CFG = CheckConfig(deadline_s=30.0)


def ranks_on(*nodes: str) -> list[Vertex]:
    """Return one rank on each of some nodes."""
    return [
        Vertex(
            name=WorkerId(f"policy/{number}"),
            role="policy",
            section="train",
            adapter=Section(kind="sim"),
            environment={},
            ranks=Ranks(world=number, role=number, node=0, local=0),
            node=node,
            domain=node,
            device="cpu",
            devices=(),
            cpus=(),
            bundle=f"policy/{number}",
        )
        for number, node in enumerate(nodes)
    ]


async def checked(places: list[Vertex], cluster: Cluster, *faults: Fault, cfg: CheckConfig = CFG) -> Findings:
    """Launch the ranks in a simulation and check their nodes."""
    cluster.where = {vertex.name: vertex.node for vertex in places}
    line = Faults(FaultPlan(faults=faults), Observed())

    def make(spec: WorkloadSpec, inference: InferenceControllerPort | None) -> ScriptedRank:
        assert inference is None
        return ScriptedRank(spec.worker_id, cluster)

    launcher = SimLauncher(make, line, [])
    for vertex in places:
        await launcher.launch(spec_of(vertex, Site(job_dir="/")))

    def rank(worker: WorkerId) -> RankPort:
        return client(RankPort, lambda method, args: launcher.call(worker, method, args))

    ranks = {vertex.name: rank(vertex.name) for vertex in places}
    return await NodeCheck(cfg, ranks, places=lambda: places, host=lambda: "here").run()


async def test_where_all_do_well_one_round_is_enough() -> None:
    cluster = Cluster()
    findings = await checked(ranks_on("a", "b", "c", "d"), cluster)
    assert (dict(findings.faulty), dict(findings.slow)) == ({}, {})
    assert sorted(cluster.checks.values()) == [["policy/0", "policy/1"], ["policy/2", "policy/3"]]
    assert anyio.current_time() == pytest.approx(1.0), "the pairs of a round are tried at once"


@pytest.mark.parametrize("hangs", [True, False])
async def test_a_broken_node_is_found_and_the_one_that_was_tried_with_it_is_not(hangs: bool) -> None:
    cluster = Cluster(hung={"b"}) if hangs else Cluster(broken={"b"})
    findings = await checked(ranks_on("a", "b", "c", "d"), cluster)
    why = "policy/1" if hangs else "7 of 9 numbers are wrong on b"
    assert list(findings.faulty) == ["b"]
    assert findings.faulty["b"].count(why) == 2, "it failed in both rounds, and is named each time"
    assert anyio.current_time() <= 2 * CFG.deadline_s + 2.0


async def test_where_no_pair_of_the_first_round_did_well_it_goes_on_until_one_does() -> None:
    cluster = Cluster(broken={"a", "c", "e", "g"})
    findings = await checked(ranks_on(*"abcdefgh"), cluster)
    assert list(findings.faulty) == ["a", "c", "e", "g"]
    assert len(cluster.checks) == 4 + 4 + 3 + 6, "a round, two waves, then all but the pair that did well; of 28 pairs"


async def test_a_slow_node_is_told_as_a_multiple_of_the_median() -> None:
    findings = await checked(ranks_on("a", "b", "c", "d"), Cluster(seconds={"c": 4.0}))
    assert not findings.faulty
    assert findings.slow == {"c": pytest.approx(4.1 / 1.1)}


async def test_the_ranks_of_one_node_are_tried_together() -> None:
    cluster = Cluster(broken={"b"})
    findings = await checked(ranks_on("a", "a", "b", "b", "c", "c"), cluster)
    assert list(findings.faulty) == ["b"]
    assert all(len(together) == 4 for together in cluster.checks.values())


async def test_on_one_node_the_ranks_are_tried_by_themselves() -> None:
    assert list(units_of(ranks_on("a", "a"))) == ["policy/0", "policy/1"]
    findings = await checked(
        ranks_on("a", "a", "a"), Cluster(), Fault(kind="crash", method="Trainer.check", worker="policy/1", call=1)
    )
    assert list(findings.faulty) == ["policy/1"], "its process is gone, and does not come back by itself"


async def test_a_reply_that_is_lost_once_makes_no_node_faulty() -> None:
    fault = Fault(kind="lost_reply", method="Trainer.check", worker="policy/1", call=1, lasts_s=1.0)
    findings = await checked(ranks_on("a", "b", "c", "d"), Cluster(), fault)
    assert not findings.faulty, "the second round is there for that"


async def test_a_dead_rank_is_named() -> None:
    """Nobody waits for the deadline of somebody who is known to be gone."""
    crash = Fault(kind="crash", method="Trainer.check", worker="policy/2", call=1)
    findings = await checked(ranks_on("a", "b", "c", "d"), Cluster(), crash)
    assert list(findings.faulty) == ["c"]
    assert "worker policy/2 is lost" in findings.faulty["c"]
    assert anyio.current_time() < 10.0


async def test_a_rule_that_is_broken_is_no_verdict_on_a_node() -> None:
    class Wrong(ScriptedRank):
        async def offer(self, host: str) -> str:
            await checkpoint()
            raise InvariantError("this is a bug")

    ranks: dict[WorkerId, RankPort] = {vertex.name: Wrong(vertex.name, Cluster()) for vertex in ranks_on("a", "b")}
    with pytest.raises(InvariantError, match="bug"):
        await NodeCheck(CFG, ranks, places=lambda: ranks_on("a", "b"), host=lambda: "").run()
