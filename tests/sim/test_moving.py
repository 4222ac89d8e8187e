"""Whole simulated runs on two nodes, one of which loses its workers again and again."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from backends.sim import Config
from backends.sim.launcher import SimLauncher
from backends.sim.virtual_time import run_virtual
from backends.sim.world import open_world
from conductor.conductor import Conductor
from conductor.inspection import inspect
from conductor.ports import Workloads
from conductor.result import RunResult
from conductor.simulation.life import in_simulation
from conductor.validation import site_of
from protocols.aio import open_tasks
from protocols.backend import Inventory, Node, PlacementPort, ReserveRequest, Resources
from protocols.errors import Transient
from protocols.incidents import Incident
from protocols.ledger import LedgerEvent, Record
from tests.support.runs import run_config

HALF = Resources(cpus=4, accelerators=4, memory_gib=4)


class Nodes:
    """Placement over nodes; one of them may refuse to be held, as if others had it.

    Attributes:
        held: What is held, and where.
        taken: Nodes that others hold.
        most: The most that was held at once.
    """

    def __init__(self, *names: str) -> None:
        self.held: dict[str, str | None] = {}
        self.taken: set[str] = set()
        self.most = 0
        self._nodes = tuple(Node(name=name, total=HALF, free=HALF, device="simulated") for name in names)

    async def inventory(self) -> Inventory:
        await checkpoint()
        return Inventory(nodes=self._nodes)

    async def reserve(self, request: ReserveRequest) -> None:
        await checkpoint()
        if request.node in self.taken:
            raise Transient(f"others hold {request.node}")
        self.held.setdefault(request.reservation_id, request.node)
        self.most = max(self.most, len(self.held))

    async def release(self, reservation_id: str) -> None:
        self.held.pop(reservation_id, None)
        await checkpoint()


_: type[PlacementPort] = Nodes


@dataclass(kw_only=True)
class Lived:
    """What became of a run; ``where`` is where its engines were held at the end."""

    result: RunResult
    events: tuple[LedgerEvent, ...]
    unstopped: list[str]
    where: list[str | None]

    @property
    def incidents(self) -> list[Incident]:
        return [one for one in self.events if isinstance(one, Incident)]


def live(placement: Nodes, *, crashes: int = 0, notice: bool = False, take: str = "") -> Lived:
    """Run a job whose first engine dies every 20 seconds, or is given notice after 30."""
    where: list[str | None] = []

    async def conduct() -> Lived:
        options: dict[str, Any] = {"sample": "constant:2.0", "train": "constant:1.0", "publish": "constant:0.1"}
        base: Mapping[str, Any] = {"steps": 120, "batch_groups": 4, "engines": 2, "max_age": 1}
        cfg = in_simulation(run_config(**base), options)
        async with open_world(Config(**options), site_of(cfg)) as world, open_tasks() as tasks:
            launcher = world.backend.launcher
            assert isinstance(launcher, SimLauncher)

            async def disturb() -> None:
                await anyio.sleep(10)
                placement.taken |= {take}
                for _ in range(crashes):
                    await anyio.sleep(20)
                    launcher.crash("rollout/0", 4.0)
                if notice:
                    await anyio.sleep(20)
                    launcher.notify("rollout/0")
                await anyio.sleep(8)
                where.extend(placement.held[f"rollout/{number}"] for number in range(2))

            tasks.start_soon(disturb)
            workloads = Workloads(prompts=world.prompts, ledger=world.ledger, trackers=())
            backend = replace(world.backend, placement=placement)
            result = await Conductor.run(cfg, backend=backend, workloads=workloads)
            return Lived(result=result, events=await world.record(), unstopped=world.observed.unstopped, where=where)

    lived = run_virtual(conduct)
    assert lived.result.steps == 120
    assert inspect(Record(events=lived.events, lost=0)).balanced
    assert lived.unstopped == []
    assert placement.held == {}, "what was exchanged is given back like the rest"
    assert [one.verdict for one in lived.incidents] == ["restored"] * (crashes + notice)
    return lived


def test_a_node_that_fails_again_and_again_is_set_aside() -> None:
    """Issue E: quarantine: the third loss within ten minutes is made good on another node."""
    placement = Nodes("a", "b")
    lived = live(placement, crashes=3)
    assert lived.where == ["b", "a"], "nobody is moved that runs"
    assert ["is moved from a to b" in one.detail for one in lived.incidents] == [False, False, True]
    assert placement.most == 5, "the old place is given back before the new one is held"


def test_who_is_given_notice_moves_at_once() -> None:
    """The node goes away: a place on it would be lost with it."""
    lived = live(Nodes("a", "b"), notice=True)
    assert lived.where == ["b", "a"]
    (incident,) = lived.incidents
    assert incident.cause == "preemption"
    assert incident.detail.endswith("rollout/0 is moved from a to b")


def test_where_there_is_no_other_node_it_stays() -> None:
    lived = live(Nodes("a"), crashes=4)
    assert lived.where == ["a", "a"]


@pytest.mark.parametrize("crashes", [3, 5])
def test_where_the_other_node_is_held_by_others_it_stays(crashes: int) -> None:
    lived = live(Nodes("a", "b"), crashes=crashes, take="b")
    assert lived.where == ["a", "a"]
    assert not any("moved" in one.detail for one in lived.incidents)
