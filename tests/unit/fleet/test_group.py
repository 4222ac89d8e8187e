"""Worker groups: started as a whole or not at all, and undone whatever happens."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from types import SimpleNamespace

import anyio
import pytest

from backends.inproc import Config
from backends.inproc import open as open_inproc
from conductor.fleet.group import member_specs, open_group
from protocols.backend import Backend, Inventory, LauncherPort, ReserveRequest, Resources, WorkloadSpec
from protocols.errors import Infeasible, PortFailed
from protocols.lifecycle import LifecyclePort
from protocols.messages import Message, WorkerId
from protocols.sections import Section, Site
from protocols.wire import over_codec

SITE = Site(job_dir=".")
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


def specs(count: int = 2, **options: bool) -> tuple[WorkloadSpec, ...]:
    return member_specs("rollout", "engine", Section(kind=KIND, options=options), SITE, count=count)


async def reserved(backend: Backend) -> float:
    inventory: Inventory = await backend.placement.inventory()
    return sum(node.total.cpus - node.free.cpus for node in inventory.nodes)


async def test_a_group_runs_inside_its_block_and_nowhere_else() -> None:
    """I75: engines were alive after the run. What the block started ends with it."""
    async with open_inproc(Config(), SITE) as backend:
        async with open_group(specs(), backend, resources=Resources(cpus=0.5), stop_s=STOP_S) as group:
            assert await group.ready() == {"rollout/0", "rollout/1"}
            assert await reserved(backend) == 1.0
        assert await backend.launcher.poll() == {}
        assert await reserved(backend) == 0.0
    assert opened == closed == ["worker"] * 2


async def test_a_member_that_cannot_be_opened_leaves_nothing_reserved_or_running() -> None:
    """W01: a failing start left the placement held, and the retry timed out for ever."""
    async with open_inproc(Config(), SITE) as backend:
        with pytest.raises(PortFailed, match="no model here"):
            async with open_group(
                (*specs(1), *specs(2, fails=True)[1:]), backend, resources=Resources(cpus=0.5), stop_s=STOP_S
            ):
                pytest.fail("the group must not start")
        assert await backend.launcher.poll() == {}
        assert await reserved(backend) == 0.0
    assert opened == closed == ["worker"] * 2


async def test_a_start_that_is_cancelled_leaves_nothing() -> None:
    """W01, W18: cancelled while a member hangs in its start."""
    async with open_inproc(Config(), SITE) as backend:
        with anyio.move_on_after(1.0) as scope:
            async with open_group(specs(hangs=True), backend, resources=Resources(cpus=0.5), stop_s=STOP_S):
                pytest.fail("the group must not start")
        assert scope.cancelled_caught
        assert await backend.launcher.poll() == {}
        assert await reserved(backend) == 0.0
    assert opened == closed


async def test_an_infeasible_group_is_refused_with_the_numbers() -> None:
    """I20, W04: an infeasible request waited silently."""
    async with open_inproc(Config(), SITE) as backend:
        with pytest.raises(Infeasible, match="1e\\+06 asked for"):
            async with open_group(specs(), backend, resources=Resources(cpus=1e6), stop_s=STOP_S):
                pytest.fail("the group must not start")
        assert await reserved(backend) == 0.0


class BrokenLauncher:
    """Launches nothing and cannot end anything."""

    async def launch(self, spec: WorkloadSpec) -> None:
        await anyio.lowlevel.checkpoint()

    async def kill(self, worker_id: WorkerId) -> None:
        await anyio.lowlevel.checkpoint()
        raise PortFailed("the node does not answer")


class CountingPlacement:
    """Counts what is held."""

    def __init__(self) -> None:
        self.held: set[str] = set()

    async def reserve(self, request: ReserveRequest) -> None:
        await anyio.lowlevel.checkpoint()
        self.held.add(request.reservation_id)

    async def release(self, reservation_id: str) -> None:
        await anyio.lowlevel.checkpoint()
        self.held.discard(reservation_id)


async def test_a_failing_teardown_does_not_replace_the_error_before_it() -> None:
    """W07: the verdict stands, the teardown is a note on it."""
    launcher: LauncherPort = BrokenLauncher()  # type: ignore[assignment]
    backend = Backend(placement=CountingPlacement(), launcher=launcher, payloads=None)  # type: ignore[arg-type]
    with pytest.raises(KeyError) as caught:
        async with open_group(specs(), backend, resources=Resources(), stop_s=STOP_S):
            raise KeyError("the run's own")
    assert "could not end rollout/1 (the node does not answer), rollout/0" in caught.value.__notes__[0]


async def test_a_failing_teardown_alone_is_an_error() -> None:
    """W07: nobody hears of a worker that could not be ended, unless it is raised."""
    launcher: LauncherPort = BrokenLauncher()  # type: ignore[assignment]
    backend = Backend(placement=CountingPlacement(), launcher=launcher, payloads=None)  # type: ignore[arg-type]
    with pytest.raises(PortFailed, match="could not end"):
        async with open_group(specs(), backend, resources=Resources(), stop_s=STOP_S):
            pass


@pytest.mark.parametrize("wire", [False, True])
async def test_the_group_is_a_lifecycle_port(wire: bool) -> None:
    """The contract of LifecyclePort: members, the missing, and a probe that asks now."""
    async with (
        open_inproc(Config(), SITE) as backend,
        open_group(specs(), backend, resources=Resources(), stop_s=STOP_S) as group,
    ):
        port: LifecyclePort = over_codec(LifecyclePort, group) if wire else group
        assert await port.missing() == frozenset()
        await backend.launcher.kill(WorkerId("rollout/1"))
        assert await port.ready() == {"rollout/0"}
        assert await port.missing() == {"rollout/1"}
        assert not await port.probe(WorkerId("rollout/1"))
        await port.stop()
        assert await port.ready() == frozenset()
