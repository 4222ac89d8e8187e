"""A worker that is moved: ended, its resources exchanged, and launched where the plan says then."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import structlog
from anyio.lowlevel import checkpoint

from conductor.config import RoleConfig
from conductor.core.planning.plan import plan
from conductor.core.quarantine import LOSSES, Quarantine
from conductor.fleet.group import WorkerGroup, open_group
from conductor.fleet.journal import Journal
from conductor.fleet.moving import Fleet, Mover
from conductor.fleet.reservation import open_reservations
from protocols.backend import Inventory, LauncherPort, ReserveRequest, WorkerState, WorkloadSpec
from protocols.errors import Infeasible, Transient
from protocols.fleet import Cause, Plan
from protocols.incidents import Incident, Scaled
from protocols.messages import WeightVersion, WorkerId
from protocols.sections import Site
from tests.unit.planning.fleets import fleet_of, job, node

A, B = WorkerId("rollout/0"), WorkerId("rollout/1")
JOB = job(engines=2, rollout=RoleConfig(cpus=2))
NODES = fleet_of(node("a", cpus=8), node("b", cpus=8))


@dataclass
class World:
    """A launcher and a placement that write down what happens, in order; ``refuses`` are nodes that others hold.

    Attributes:
        room: Reservations that ``b`` has room for.
    """

    fleet: Fleet
    inventory_: Inventory = NODES
    refuses: dict[str, Exception] = field(default_factory=dict)
    room: int = 9
    acts: list[str] = field(default_factory=list)
    specs: dict[WorkerId, WorkloadSpec] = field(default_factory=dict)
    unguarded: list[str] = field(default_factory=list)
    held: dict[str, str | None] = field(default_factory=dict)

    async def inventory(self) -> Inventory:
        await checkpoint()
        return self.inventory_

    async def reserve(self, request: ReserveRequest) -> None:
        await checkpoint()
        if not self.fleet.turn.locked():
            self.unguarded.append(request.reservation_id)
        if request.node in self.refuses:
            raise self.refuses[request.node]
        if request.node == "b" and list(self.held.values()).count("b") == self.room:
            raise Transient("others hold the rest")
        self.acts.append(f"hold {request.reservation_id} on {request.node}")
        self.held.setdefault(request.reservation_id, request.node)

    async def release(self, reservation_id: str) -> None:
        await checkpoint()
        self.acts.append(f"release {reservation_id}")
        self.held.pop(reservation_id, None)

    async def launch(self, spec: WorkloadSpec) -> None:
        await checkpoint()
        self.acts.append(f"launch {spec.worker_id}")
        self.specs[spec.worker_id] = spec

    async def kill(self, worker: WorkerId) -> None:
        await checkpoint()
        self.acts.append(f"end {worker}")
        self.specs.pop(worker, None)

    async def poll(self) -> dict[WorkerId, WorkerState]:
        await checkpoint()
        return dict.fromkeys(self.specs, WorkerState())


async def _record(_incident: Incident | Scaled) -> None:
    await checkpoint()


JOURNAL = Journal(trained=lambda: WeightVersion(0), record=_record, log=structlog.get_logger())


@asynccontextmanager
async def opened(inventory: Inventory = NODES) -> AsyncGenerator[tuple[World, Mover, WorkerGroup]]:
    """Two engines that run on the first node."""
    made = plan(JOB, inventory)
    assert isinstance(made, Plan)
    world = World(fleet=Fleet(plan=made), inventory_=inventory)
    launcher: LauncherPort = world  # type: ignore[assignment]
    async with (
        open_reservations(made.bundles, world, stop_s=5.0) as reservations,
        open_group(made.workers("rollout"), launcher, Site(job_dir="/"), start_s=60.0, stop_s=5.0) as group,
    ):
        quarantine = Quarantine()
        mover = Mover(world.fleet, JOB, (), placement=world, reservations=reservations, quarantine=quarantine)
        world.acts.clear()
        world.unguarded.clear()
        yield world, mover, group


async def lost(mover: Mover, group: WorkerGroup, workers: list[WorkerId], cause: Cause) -> tuple[str, ...]:
    """Lose workers, and move those that had better move."""
    mover.lose(workers, cause)
    return await mover.move(group, workers, JOURNAL)


async def test_it_is_ended_before_its_resources_are_exchanged_and_launched_with_the_new_ones() -> None:
    """What still runs on resources that are given back shares them with whoever gets them next."""
    async with opened() as (world, mover, group):
        before = world.specs[A]
        assert await lost(mover, group, [A], "preemption") == (f"{A} is moved from a to b",)
        assert world.acts == [f"end {A}", f"release {A}", f"hold {A} on b"]
        await group.replace((A,))
        assert world.specs[A].cpus != before.cpus
        assert world.specs[A].cpus == world.fleet.plan.workers("rollout")[0].cpus
        assert world.fleet.plan.workers("rollout")[0].node == "b"
        assert world.held[B] == "a", "nobody else is touched"
        assert world.unguarded == [], "nobody else changes the plan meanwhile"
        assert not world.fleet.turn.locked()
    assert world.held == {}


async def test_the_domain_is_set_aside_after_some_losses_of_any_of_its_workers() -> None:
    async with opened() as (world, mover, group):
        for number in range(LOSSES - 1):
            assert await lost(mover, group, [(A, B)[number % 2]], "worker") == ()
        assert world.acts == []
        assert await lost(mover, group, [A], "controller") == (f"{A} is moved from a to b",)
        assert await lost(mover, group, [A], "worker") == (), "the new place is a good one"


async def test_a_place_may_be_set_aside_before_anybody_was_lost_there() -> None:
    """A node that fails a check has lost nobody yet."""
    async with opened() as (world, mover, group):
        mover.set_aside([A])
        assert await mover.move(group, [B], JOURNAL) == (f"{B} is moved from a to b",), "it was on the same node"
        assert (world.held[A], world.held[B]) == ("a", "b")


@pytest.mark.parametrize(
    "refusal", [Transient("others hold it"), Infeasible(what="CPUs", asked=2, available=1)], ids=["now", "for good"]
)
async def test_where_others_hold_the_new_place_it_keeps_the_old_one(refusal: Exception) -> None:
    async with opened() as (world, mover, group):
        before, spec = world.fleet.plan, world.specs[A]
        world.refuses["b"] = refusal
        assert await lost(mover, group, [A], "preemption") == ()
        assert world.held[A] == "a"
        assert world.fleet.plan == before
        await group.replace((A,))
        assert world.specs[A] == spec


async def test_of_several_either_all_move_or_none() -> None:
    """Half of a move would leave the plan and what is held at odds."""
    async with opened() as (world, mover, group):
        world.room = 1
        assert await lost(mover, group, [A, B], "preemption") == ()
        assert (world.held[A], world.held[B]) == ("a", "a")
        world.room = 2
        await lost(mover, group, [A, B], "preemption")
        assert (world.held[A], world.held[B]) == ("b", "b")


async def test_while_the_size_of_the_fleet_is_changed_nobody_is_moved() -> None:
    """A lost worker does not wait for engines that are being launched, and two plans are not made at once."""
    async with opened() as (world, mover, group), world.fleet.turn:
        assert await lost(mover, group, [A], "preemption") == ()
        assert world.acts == []


async def test_where_there_is_no_other_domain_nothing_is_tried() -> None:
    async with opened(fleet_of(node("a", cpus=8))) as (world, mover, group):
        assert await lost(mover, group, [A], "preemption") == ()
        assert world.acts == []


async def test_where_there_is_no_room_elsewhere_it_stays_unless_its_node_is_gone() -> None:
    """A doubtful node is better than none; on one that is gone nothing can be launched, and the numbers say why."""
    full = fleet_of(node("a", cpus=8), node("b", cpus=1))
    async with opened(full) as (world, mover, group):
        assert await lost(mover, group, [A], "preemption") == ()
        world.inventory_ = fleet_of(node("b", cpus=1))
        with pytest.raises(Infeasible, match=f"{A} cannot be launched, since the node is gone"):
            await mover.move(group, [A], JOURNAL)
        assert world.acts == []
