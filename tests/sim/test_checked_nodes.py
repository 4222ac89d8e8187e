"""Whole simulated runs of two ranks on nodes that are checked before they train, and after some have moved."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from backends.ledgers.memory import MemoryLedger
from backends.sim import Config
from backends.sim.faults import Faults
from backends.sim.launcher import SimLauncher
from backends.sim.virtual_time import run_virtual
from backends.sim.world import World, open_world
from conductor.conductor import Conductor
from conductor.config import CheckConfig, FleetConfig, RoleConfig
from conductor.inspection import incidents, inspect
from conductor.ports import Workloads
from conductor.result import RunResult
from conductor.simulation.life import in_simulation
from conductor.validation import site_of
from protocols.aio import open_tasks
from protocols.backend import Inventory, WorkloadSpec
from protocols.errors import BudgetExhausted, Infeasible
from protocols.faults import FaultPlan
from protocols.incidents import Incident
from protocols.inference import InferenceControllerPort
from protocols.ledger import Record
from protocols.messages import WorkerId
from protocols.simulation import Observed
from tests.sim.test_moving import Nodes
from tests.support.runs import run_config
from tests.support.scripted.ranks import Cluster, ScriptedRank

CHECK = CheckConfig(deadline_s=20.0)
POLICY = RoleConfig(instances=2, accelerators=1, placement="spread")
SECOND = WorkerId("policy/1")
LARGE = msgspec.structs.replace(POLICY, accelerators=3)
"""Of which no node has room for two."""


class Separate(Nodes):
    """Nodes whose workers have processes of their own; one may go away."""

    gone: str = ""

    async def inventory(self) -> Inventory:
        found = await super().inventory()
        nodes = tuple(node for node in found.nodes if node.name != self.gone)
        return Inventory(nodes=nodes, own_processes=True)


@dataclass(kw_only=True)
class Scene:
    """A run of two ranks.

    Attributes:
        crashes: Times that ``policy/1`` dies, every 20 s.
        goes: A node that goes away before that.
    """

    cluster: Cluster = field(default_factory=Cluster)
    nodes: Separate = field(default_factory=lambda: Separate("a", "b", "c"))
    check: CheckConfig | None = CHECK
    crashes: int = 0
    goes: str = ""
    ledger: MemoryLedger = field(default_factory=MemoryLedger)
    run_dir: str | None = None
    resume: bool = False
    steps: int = 40
    role: RoleConfig = POLICY

    def run(self) -> RunResult:
        return run_virtual(self._conduct)

    async def events(self) -> tuple[Incident, ...]:
        record = Record(events=await self.ledger.replay(), lost=0)
        assert inspect(record).balanced
        return tuple(one for one in incidents(record) if isinstance(one, Incident))

    def incidents(self) -> tuple[Incident, ...]:
        return anyio.run(self.events)

    async def _conduct(self) -> RunResult:
        options: dict[str, Any] = {"sample": "constant:2.0", "train": "constant:1.0", "publish": "constant:0.1"}
        cfg = in_simulation(run_config(batch_groups=4, max_age=1), options)
        fleet = FleetConfig(roles={"policy": self.role}, check=self.check)
        cfg = msgspec.structs.replace(cfg, fleet=fleet, run_dir=self.run_dir, steps=self.steps)
        async with open_world(Config(**options), site_of(cfg)) as world, open_tasks() as tasks:
            launcher = self._launcher(world)

            async def disturb() -> None:
                for _ in range(self.crashes):
                    await anyio.sleep(20)
                    self.nodes.gone = self.goes
                    launcher.crash("policy/1", 1.0)

            tasks.start_soon(disturb)
            workloads = Workloads(prompts=world.prompts, ledger=self.ledger, trackers=())
            backend = replace(world.backend, placement=self.nodes, launcher=launcher)
            return await Conductor.run(cfg, backend=backend, workloads=workloads, resume=self.resume)

    def _launcher(self, world: World) -> SimLauncher:
        def make(spec: WorkloadSpec, inference: InferenceControllerPort | None) -> Any:
            if spec.section != "train":
                return world._make(spec, inference)
            where = self.nodes.held[spec.reservation_id]
            assert where is not None
            self.cluster.where[spec.worker_id] = where
            return ScriptedRank(spec.worker_id, self.cluster, world.backend.payloads)

        return SimLauncher(make, Faults(FaultPlan(), Observed()), [])


def test_nobody_is_checked_unless_the_job_says_so() -> None:
    scene = Scene(check=None)
    assert scene.run().steps == 40
    assert scene.cluster.checks == {}


def test_a_node_that_does_not_pass_is_left_before_anybody_trains() -> None:
    """Issue E: the phase check: a node that is broken is found before the ranks meet, and not by a run that hangs."""
    scene = Scene(cluster=Cluster(broken={"b"}))
    assert scene.run().steps == 40
    assert scene.cluster.where == {"policy/0": "a", "policy/1": "c"}
    (incident,) = scene.incidents()
    assert (incident.workers, incident.level, incident.verdict) == (("policy/1",), "node", "restored")
    assert "numbers are wrong on b" in incident.detail
    assert "policy/1 is moved from b to c" in incident.detail
    assert list(incident.aside) == ["b"]


def test_where_there_is_no_other_node_the_run_does_not_begin_and_says_why() -> None:
    scene = Scene(cluster=Cluster(hung={"b"}), nodes=Separate("a", "b"), role=LARGE)
    with pytest.raises(Infeasible, match=r"pass the check \(b with a: no answer.*\): 2 asked for, 1 available"):
        scene.run()
    assert scene.nodes.held == {}


@pytest.mark.parametrize("exclude", [False, True])
def test_a_slow_node_is_told_of_and_left_where_the_job_says_so(exclude: bool) -> None:
    check = msgspec.structs.replace(CHECK, exclude_slow=exclude)
    scene = Scene(cluster=Cluster(seconds={"b": 5.0}), check=check)
    assert scene.run().steps == 40
    assert scene.cluster.where[SECOND] == ("c" if exclude else "b")
    (incident,) = scene.incidents()
    assert incident.verdict == ("restored" if exclude else "noted")
    assert "b 4.6 times the median of 1.1 s" in incident.detail
    record = Record(events=anyio.run(scene.ledger.replay), lost=0)
    assert inspect(record).incidents == exclude, "a worker that was only taken note of was not lost"


def test_a_rank_leaves_a_node_that_loses_it_again_and_again_and_the_new_one_is_checked() -> None:
    """Issue E: quarantine holds for ranks as well, and nodes are checked again after a failover that led to others."""
    scene = Scene(crashes=3, steps=80)
    assert scene.run().steps == 80
    assert scene.cluster.where == {"policy/0": "a", "policy/1": "c"}
    assert [one.level for one in scene.incidents()] == ["worker", "worker", "node"]
    assert len(scene.cluster.checks) == 2, "at the start, and when the rank had moved"
    assert set(scene.cluster.hosts) == {""}, "ranks on several nodes meet under a name that all of them reach"


def test_a_new_node_that_does_not_pass_is_left_for_another() -> None:
    scene = Scene(cluster=Cluster(broken={"c"}), nodes=Separate("a", "b", "c", "d"), crashes=3, steps=80)
    assert scene.run().steps == 80
    assert scene.cluster.where == {"policy/0": "a", "policy/1": "d"}
    last = scene.incidents()[-1]
    assert (last.level, last.verdict, last.attempts) == ("node", "restored", 2)
    assert "did not pass the check" in last.detail
    assert set(last.aside) == {"b", "c"}


def test_where_no_node_that_passes_is_left_nobody_trains_on_one_that_does_not() -> None:
    """The rank stayed on the node that had failed, unchecked, since it had not moved again."""
    scene = Scene(cluster=Cluster(broken={"c"}), role=LARGE, crashes=3, steps=80)
    with pytest.raises(BudgetExhausted, match="did not pass the check"):
        scene.run()
    assert scene.incidents()[-1].verdict == "given_up"


def test_a_rank_whose_node_is_gone_is_launched_on_another() -> None:
    scene = Scene(crashes=1, goes="b")
    assert scene.run().steps == 40
    assert scene.cluster.where == {"policy/0": "a", "policy/1": "c"}
    assert "policy/1 is moved from b to c" in scene.incidents()[0].detail


def test_a_rank_whose_node_is_gone_and_has_no_other_ends_the_run_with_the_numbers() -> None:
    """A node may come back, so the budget for launches that fail is spent first."""
    scene = Scene(nodes=Separate("a", "b"), crashes=1, goes="b", role=LARGE)
    numbers = (
        r"8 allowed by .*controller; .* since the node is gone.* of which a has 1 left.*: 1 asked for, 0 available"
    )
    with pytest.raises(BudgetExhausted, match=numbers):
        scene.run()
    assert scene.incidents()[-1].verdict == "given_up"


def test_a_resumed_run_knows_what_was_set_aside(tmp_path: Path) -> None:
    """Issue E: a controller that dies forgot which node had killed its workers, and gave them back to it."""
    first = Scene(crashes=3, steps=70, run_dir=str(tmp_path))
    first.run()
    assert first.cluster.where[SECOND] == "c"
    again = Scene(steps=75, run_dir=str(tmp_path), resume=True, ledger=first.ledger)
    again.run()
    assert again.cluster.where == {"policy/0": "a", "policy/1": "c"}


def test_what_happens_before_a_run_goes_on_is_told_of_at_the_version_that_it_goes_on_from(tmp_path: Path) -> None:
    """At v0 its quarantine would have been over as soon as the run was resumed once more."""
    first = Scene(steps=10, run_dir=str(tmp_path))
    first.run()
    again = Scene(steps=12, run_dir=str(tmp_path), resume=True, ledger=first.ledger, cluster=Cluster(broken={"b"}))
    again.run()
    assert [one.version for one in again.incidents()] == [10]
