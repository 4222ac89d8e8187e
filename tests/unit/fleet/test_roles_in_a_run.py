"""Roles with several instances, and roles of the user's own, in whole runs."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import msgspec
import pytest

from backends import inproc
from backends.sim.prompts import ScriptedPrompts
from conductor.conductor import Conductor
from conductor.config import CollocateConfig, FleetConfig, QueueConfig, RoleConfig, RunConfig
from conductor.core.planning.plan import plan
from conductor.ports import Workloads
from examples.roles.judges import Judging, Text
from protocols.adapters import Host
from protocols.backend import Backend, Inventory
from protocols.errors import ConfigError, PortFailed, Problem
from protocols.fleet import Plan
from protocols.messages import Message
from protocols.sections import Section, Site
from tests.support.runs import run_config
from tests.unit.cli import scripted
from tests.unit.planning.fleets import fleet_of, node

opened: list[str] = []
closed: list[str] = []


class Options(Message, frozen=True, kw_only=True):
    """What a worker under test does."""

    name: str
    fails: bool = False


@asynccontextmanager
async def _open(cfg: Options, _host: Host) -> AsyncGenerator[object]:
    if cfg.fails:
        raise PortFailed("no judge today")
    opened.append(cfg.name)
    try:
        yield object()
    finally:
        closed.append(cfg.name)


def _check(_cfg: Options, _site: Site) -> Sequence[Problem]:
    return ()


@asynccontextmanager
async def _ask(cfg: Options, host: Host) -> AsyncGenerator[object]:
    assert host.roles is not None
    score = await host.roles.of("judge", Judging).one.score(Text(words=("always", "never")))
    async for text in host.roles.queue("scored", Text):
        opened.append(f"asked {score}, took {' '.join(text.words)}")
        break
    yield object()


JUDGE = SimpleNamespace(Config=Options, check=_check, open=_open)
ASKS = SimpleNamespace(Config=Options, check=_check, open=_ask)


class _Told:
    """An adapter that tells when a worker of it is opened, around a scripted one."""

    def __init__(self, name: str) -> None:
        self._name, self._adapter = name, getattr(scripted, name)
        self.Config, self.check = self._adapter.Config, self._adapter.check

    @asynccontextmanager
    async def open(self, cfg: Any, host: Host) -> AsyncGenerator[Any]:
        opened.append(self._name)
        async with self._adapter.open(cfg, host) as port:
            yield port
        closed.append(self._name)


reward, episode, engine, train = (_Told(name) for name in ("reward", "episode", "engine", "train"))


@pytest.fixture(autouse=True)
def _clean() -> None:
    opened.clear()
    closed.clear()


def job(**roles: RoleConfig) -> RunConfig:
    sections = {name: Section(kind=f"{__name__}:{name}") for name in ("reward", "episode", "engine", "train")}
    return run_config(prompts=Section(kind="x"), fleet=FleetConfig(roles=roles), **sections)


def judge(**options: Any) -> RoleConfig:
    return RoleConfig(kind=f"{__name__}:JUDGE", options={"name": "judge", **options}, instances=2)


class Holding:
    """The placement of this process, which remembers the most that was held."""

    def __init__(self, placement: Any) -> None:
        self._placement = placement
        self.names: list[str] = []

    async def inventory(self) -> Inventory:
        return fleet_of(node("local", cpus=8))

    async def reserve(self, request: Any) -> None:
        self.names.append(request.reservation_id)
        await self._placement.reserve(msgspec.structs.replace(request, resources=type(request.resources)()))

    async def release(self, reservation_id: str) -> None:
        self.names.remove(reservation_id)
        await self._placement.release(reservation_id)


@asynccontextmanager
async def open_backend() -> AsyncGenerator[Backend]:
    async with inproc.open(inproc.Config(), Site(job_dir=".")) as backend:
        placement = Holding(backend.placement)
        yield Backend(placement=placement, launcher=backend.launcher, payloads=backend.payloads)
        assert await backend.launcher.poll() == {}
        assert placement.names == []


def workloads() -> Workloads:
    return Workloads(prompts=ScriptedPrompts(100), trackers=())


async def test_a_run_over_several_graders_and_executors_balances_its_books() -> None:
    """Several workers of a role are one port to the run."""
    two = RoleConfig(instances=2, cpus=1)
    async with open_backend() as backend:
        result = await Conductor.run(job(reward=two, episode=two), backend=backend, workloads=workloads())
    assert result.steps == 2
    assert result.accounts.balanced
    assert opened.count("reward") == opened.count("episode") == 2
    assert sorted(opened) == sorted(closed)


async def test_a_role_of_ones_own_is_there_before_the_others_and_after_them() -> None:
    """A reward may ask a judge as soon as it is opened, and until it is closed."""
    async with open_backend() as backend:
        await Conductor.run(job(judge=judge()), backend=backend, workloads=workloads())
    assert opened[:2] == closed[-2:] == ["judge", "judge"]


async def test_a_role_of_ones_own_calls_another_and_feeds_its_queue() -> None:
    """From a job alone: who calls whom, and through which queue."""
    judge = RoleConfig(kind="object", options={"make": "examples.roles.judges:Judge"}, instances=2)
    asks = RoleConfig(kind=f"{__name__}:ASKS", options={"name": "asks"})
    cfg = job(judge=judge, asks=asks)
    fleet = msgspec.structs.replace(cfg.fleet, queues={"scored": QueueConfig(consumer="asks")})
    async with open_backend() as backend:
        await Conductor.run(msgspec.structs.replace(cfg, fleet=fleet), backend=backend, workloads=workloads())
    assert "asked 1.0, took always never" in opened


async def ask_and_tell(host: Host, *, word: str) -> None:
    """Ask the judge, beside the run."""
    assert host.roles is not None
    opened.append(f"score {await host.roles.of('judge', Judging).one.score(Text(words=(word,)))}")
    await anyio.sleep_forever()


async def test_a_function_is_a_role_and_calls_another() -> None:
    """Issue E: a class, a function or a command line as the workload of a role."""
    judge = RoleConfig(kind="object", options={"make": "examples.roles.judges:Judge"})
    asks = RoleConfig(kind="function", options={"function": f"{__name__}:ask_and_tell", "options": {"word": "always"}})
    cfg = job(judge=judge, asks=asks)
    fleet = msgspec.structs.replace(cfg.fleet, queues={"scored": QueueConfig(consumer="asks")})
    async with open_backend() as backend:
        await Conductor.run(msgspec.structs.replace(cfg, fleet=fleet), backend=backend, workloads=workloads())
    assert "score 1.0" in opened


async def test_a_queue_of_a_role_that_is_not_there_is_refused() -> None:
    cfg = job(judge=judge())
    fleet = msgspec.structs.replace(cfg.fleet, queues={"scored": QueueConfig(consumer="juge")})
    async with open_backend() as backend:
        with pytest.raises(ConfigError, match=r"fleet\.queues\.scored\.consumer = 'juge'.*did you mean 'judge'"):
            await Conductor.run(msgspec.structs.replace(cfg, fleet=fleet), backend=backend, workloads=workloads())


async def test_a_role_of_ones_own_that_cannot_be_opened_ends_the_run_with_nothing_left() -> None:
    """W01: whatever was reserved and launched before it is given back."""
    async with open_backend() as backend:
        with pytest.raises(PortFailed, match="no judge today"):
            await Conductor.run(job(judge=judge(fails=True)), backend=backend, workloads=workloads())
    assert opened == []


async def test_a_run_that_finds_no_place_starts_nothing() -> None:
    """I20, W04, W13: with the numbers, before a model is loaded."""
    crowd = RoleConfig(instances=64, cpus=1)
    async with open_backend() as backend:
        with pytest.raises(ConfigError) as refused:
            await Conductor.run(job(reward=crowd), backend=backend, workloads=workloads())
    (problem,) = refused.value.problems
    assert problem.why == "CPUs for 64 instances of 1: 64, of 7 for workers"
    assert opened == []


async def test_a_plan_made_before_is_launched_and_one_of_another_job_is_not() -> None:
    """W12: yesterday's plan beside today's job."""
    today, before = job(), job(reward=RoleConfig(instances=2))
    found = plan(before, fleet_of(node("local", cpus=8)), given={"prompts"})
    assert isinstance(found, Plan)
    async with open_backend() as backend:
        await Conductor.run(before, backend=backend, workloads=workloads(), plan=found)
        with pytest.raises(ConfigError, match="reward/1: the job has no such worker"):
            await Conductor.run(today, backend=backend, workloads=workloads(), plan=found)


async def test_collocated_roles_run_in_bundles_that_are_reserved_once() -> None:
    group = CollocateConfig(roles=("reward", "episode"))
    together = msgspec.structs.replace(job(), fleet=FleetConfig(collocate=(group,)))
    found = plan(together, fleet_of(node("local", cpus=8)))
    assert isinstance(found, Plan)
    assert [bundle.members for bundle in found.bundles if len(bundle.members) > 1] == [("episode/0", "reward/0")]
    async with open_backend() as backend:
        result = await Conductor.run(together, backend=backend, workloads=workloads())
    assert result.accounts.balanced


@pytest.mark.real_time
async def test_the_plan_lies_in_the_folder_of_the_run(tmp_path: Path) -> None:
    cfg = msgspec.structs.replace(job(), run_dir=str(tmp_path / "run"))
    async with open_backend() as backend:
        await Conductor.run(cfg, backend=backend, workloads=workloads())
    assert '"name": "rollout/0"' in (tmp_path / "run" / "plan.json").read_text()
