"""A job on two nodes, with two engines and two ranks, some of which are killed while it trains."""

import os
import signal
from pathlib import Path

import anyio
import pytest

pytest.importorskip("ray")

import ray
from ray.util.placement_group import placement_group_table

from backends import ray as backend
from backends.ray.payloads import RayPayloads
from conductor import Conductor, load_config
from conductor.inspection import incidents, inspect, read_record
from conductor.observe.observer import Unwatched
from conductor.result import Accounts
from protocols.aio import Doorbell
from protocols.backend import Backend
from protocols.messages import WorkerId
from protocols.sections import Site
from protocols.tracking import StepRecord
from tests.support.ray_clusters import RayCluster
from tests.support.small_runs import JOB, REPEATABLE, SMALL

pytestmark = [pytest.mark.cluster, pytest.mark.real_time, pytest.mark.timeout(500)]

FLEET = [
    "reward.cheap=true",
    "engines=2",
    "fleet.roles.policy.instances=2",
    "fleet.roles.policy.placement=spread",
    "fleet.roles.rollout.placement=spread",
    'fleet.environment={OMP_NUM_THREADS="1"}',
]


class Steps(Unwatched):
    """Lets others wait for steps."""

    def __init__(self) -> None:
        self.done = 0
        self._bell = Doorbell()

    def stepped(self, record: StepRecord, accounts: Accounts) -> None:
        self.done += 1
        self._bell.ring()

    async def wait_for(self, more: int) -> None:
        until = self.done + more
        while self.done < until:
            await self._bell.wait()


async def pids(made: Backend) -> dict[WorkerId, int | None]:
    return {name: state.pid for name, state in (await made.launcher.poll()).items() if state.running}


async def test_an_engine_and_a_rank_are_killed_and_it_trains_on(tmp_path: Path, ray_cluster: RayCluster) -> None:
    """I04, W11: each is replaced, with balanced books; no payload byte ever comes to the controller."""
    cfg = load_config(JOB, overrides=[*SMALL, *REPEATABLE, *FLEET, "steps=1000000"], run_dir=str(tmp_path / "run"))
    options = backend.Config(address=ray_cluster.address)
    async with backend.open(options, Site(job_dir="/")) as made:
        steps = Steps()

        async def conduct() -> None:
            with anyio.CancelScope() as scope:
                tasks.start_soon(kill_them, scope)
                await Conductor.run(cfg, backend=made, observer=steps)

        async def kill_them(scope: anyio.CancelScope) -> None:
            await steps.wait_for(2)
            for victim in (WorkerId("rollout/1"), WorkerId("policy/1")):
                known = len(incidents(read_record(cfg)))
                pid = (await pids(made))[victim]
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
                while len(incidents(read_record(cfg))) == known:
                    await steps.wait_for(1)
            await steps.wait_for(2)
            scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(conduct)
        assert await pids(made) == {}
        assert {group["state"] for group in placement_group_table().values()} <= {"REMOVED"}
        assert isinstance(made.payloads, RayPayloads)
        assert (made.payloads.bytes_got, made.payloads.bytes_put) == (0, 0)
        assert await made.payloads.owners() == frozenset()
    assert not ray.is_initialized()
    record = read_record(cfg)
    assert inspect(record).balanced
    told = incidents(record)
    assert [one.workers for one in told] == [(WorkerId("rollout/1"),), (WorkerId("policy/1"),)]
    assert {one.verdict for one in told} == {"restored"}
