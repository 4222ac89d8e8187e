"""Worker groups: started as a whole or not at all, and undone whatever happens."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import SimpleNamespace

import anyio
import msgspec
import pytest

from backends.inproc import Config
from backends.inproc import open as open_inproc
from conductor.fleet.group import WorkerGroup, open_group, spec_of
from conductor.fleet.reservation import open_reservations
from protocols.backend import Backend, Inventory, LauncherPort, ReserveRequest, Resources, WorkloadSpec
from protocols.errors import Infeasible, PortFailed
from protocols.fleet import Bundle, Vertex
from protocols.lifecycle import LifecyclePort
from protocols.messages import Message, WorkerId
from protocols.sections import Section, Site
from protocols.wire import over_codec
from tests.support.vertices import vertices

SITE = Site(job_dir=".")
START_S = 60.0
STOP_S = 5.0
opened: list[str] = []
closed: list[str] = []


class Options(Message, frozen=True, kw_only=True):
    """What the workload under test does when it opens."""

    fails: bool = False
    hangs: bool = False


@asynccontextmanager
async def _open(cfg: Options, _host: object) -> AsyncGenerator[object]:
    opened.append("worker")
    try:
        if cfg.fails:
            raise ValueError("no model here")
        if cfg.hangs:
            await anyio.sleep_forever()
        yield object()
    finally:
        closed.append("worker")


ADAPTER = SimpleNamespace(Config=Options, check=lambda _cfg, _site: (), open=_open)
KIND = f"{__name__}:ADAPTER"


@pytest.fixture(autouse=True)
def _clean() -> None:
    opened.clear()
    closed.clear()


def rollouts(count: int = 2, **options: bool) -> tuple[Vertex, ...]:
    return vertices("rollout", "engine", [Section(kind=KIND, options=options)] * count)


def bundles(count: int = 2, cpus: float = 0.5) -> tuple[Bundle, ...]:
    return tuple(
        Bundle(name=vertex.bundle, node=vertex.node, resources=Resources(cpus=cpus), members=(vertex.name,))
        for vertex in rollouts(count)
    )


def open_rollouts(
    backend: Backend, vertices: tuple[Vertex, ...] | None = None
) -> AbstractAsyncContextManager[WorkerGroup]:
    return open_group(vertices or rollouts(), backend.launcher, SITE, start_s=START_S, stop_s=STOP_S)


async def reserved(backend: Backend) -> float:
    inventory: Inventory = await backend.placement.inventory()
    return sum(node.total.cpus - node.free.cpus for node in inventory.nodes)


async def test_a_group_runs_inside_its_block_and_nowhere_else() -> None:
    """I75: engines were alive after the run. What the block started ends with it."""
    async with open_inproc(Config(), SITE) as backend:
        async with open_rollouts(backend) as group:
            assert await group.ready() == {"rollout/0", "rollout/1"}
        assert await backend.launcher.poll() == {}
    assert opened == closed == ["worker"] * 2


async def test_a_member_that_cannot_be_opened_leaves_nothing_running() -> None:
    """W01: a failing start left workers behind."""
    async with open_inproc(Config(), SITE) as backend:
        with pytest.raises(PortFailed, match="no model here"):
            async with open_rollouts(backend, (*rollouts(1), *rollouts(2, fails=True)[1:])):
                pytest.fail("the group must not start")
        assert await backend.launcher.poll() == {}
    assert opened == closed == ["worker"] * 2


async def test_a_start_that_is_cancelled_leaves_nothing() -> None:
    """W01, W18: cancelled while a member hangs in its start."""
    async with open_inproc(Config(), SITE) as backend:
        with anyio.move_on_after(1.0) as scope:
            async with open_rollouts(backend, rollouts(hangs=True)):
                pytest.fail("the group must not start")
        assert scope.cancelled_caught
        assert await backend.launcher.poll() == {}
    assert opened == closed


async def test_what_is_reserved_is_held_inside_the_block_and_nowhere_else() -> None:
    """W01: a failing start left the placement held, and the retry timed out for ever."""
    async with open_inproc(Config(), SITE) as backend:
        async with open_reservations(bundles(), backend.placement, stop_s=STOP_S):
            assert await reserved(backend) == 1.0
        assert await reserved(backend) == 0.0


TOO_LARGE = Bundle(name="b", node="local", resources=Resources(cpus=1e6), members=())
NOWHERE = Bundle(name="b", node="elsewhere", resources=Resources(), members=())


@pytest.mark.parametrize("refused", [TOO_LARGE, NOWHERE])
async def test_a_fleet_that_is_infeasible_is_refused_with_the_numbers_and_holds_nothing(refused: Bundle) -> None:
    """I20, W04: an infeasible request waited silently."""
    async with open_inproc(Config(), SITE) as backend:
        with pytest.raises(Infeasible, match=r"1e\+06 asked for|no such node"):
            async with open_reservations((*bundles(), refused), backend.placement, stop_s=STOP_S):
                pytest.fail("the fleet must not start")
        assert await reserved(backend) == 0.0


async def test_a_reservation_that_is_cancelled_is_given_back() -> None:
    """W01, W06: a reply that never came does not leave the resources held."""
    placement = CountingPlacement(hangs_at="rollout/1")
    with anyio.move_on_after(1.0) as scope:
        async with open_reservations(bundles(), placement, stop_s=STOP_S):  # type: ignore[arg-type]
            pytest.fail("the fleet must not start")
    assert scope.cancelled_caught
    assert placement.held == set()


class BrokenLauncher:
    """Launches nothing and cannot end anything."""

    async def launch(self, spec: WorkloadSpec) -> None:
        await anyio.lowlevel.checkpoint()

    async def kill(self, worker_id: WorkerId) -> None:
        await anyio.lowlevel.checkpoint()
        raise PortFailed("the node does not answer")


class CountingPlacement:
    """Counts what is held; of one reservation the reply never comes."""

    def __init__(self, hangs_at: str) -> None:
        self.held: set[str] = set()
        self._hangs_at = hangs_at

    async def reserve(self, request: ReserveRequest) -> None:
        await anyio.lowlevel.checkpoint()
        self.held.add(request.reservation_id)
        if request.reservation_id == self._hangs_at:
            await anyio.sleep_forever()

    async def release(self, reservation_id: str) -> None:
        await anyio.lowlevel.checkpoint()
        self.held.discard(reservation_id)


async def test_a_failing_teardown_does_not_replace_the_error_before_it() -> None:
    """W07: the verdict stands, the teardown is a note on it."""
    launcher: LauncherPort = BrokenLauncher()  # type: ignore[assignment]
    with pytest.raises(KeyError) as caught:
        async with open_group(rollouts(), launcher, SITE, start_s=START_S, stop_s=STOP_S):
            raise KeyError("the run's own")
    assert "could not end rollout/0 (the node does not answer), rollout/1" in caught.value.__notes__[0]


async def test_a_failing_teardown_alone_is_an_error() -> None:
    """W07: nobody hears of a worker that could not be ended, unless it is raised."""
    launcher: LauncherPort = BrokenLauncher()  # type: ignore[assignment]
    with pytest.raises(PortFailed, match="could not end"):
        async with open_group(rollouts(), launcher, SITE, start_s=START_S, stop_s=STOP_S):
            pass


@pytest.mark.parametrize("wire", [False, True])
async def test_the_group_is_a_lifecycle_port(wire: bool) -> None:
    """The contract of LifecyclePort: members, the missing, and a probe that asks now."""
    async with open_inproc(Config(), SITE) as backend, open_rollouts(backend) as group:
        port: LifecyclePort = over_codec(LifecyclePort, group) if wire else group
        assert await port.missing() == frozenset()
        await backend.launcher.kill(WorkerId("rollout/1"))
        assert await port.ready() == {"rollout/0"}
        assert await port.missing() == {"rollout/1"}
        assert not await port.probe(WorkerId("rollout/1"))
        await port.stop()
        assert await port.ready() == frozenset()


def test_a_launcher_is_told_what_the_plan_says() -> None:
    """An edited plan that moves a worker must move it: nothing on the way may be left out."""
    base = rollouts()[1]
    vertex = msgspec.structs.replace(base, cpus=(2, 3), devices=(1,), environment={"A": "1"}, bundle="policy/0")
    spec = spec_of(vertex, SITE)
    assert (spec.worker_id, spec.section, spec.adapter, spec.site) == (base.name, "engine", base.adapter, SITE)
    assert (spec.cpus, spec.devices, spec.environment) == ((2, 3), (1,), {"A": "1"})
    assert (spec.reservation_id, spec.ranks) == ("policy/0", base.ranks)
