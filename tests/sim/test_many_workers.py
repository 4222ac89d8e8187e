"""A role of ten thousand workers that die one after the other: each is brought back as if they were ten."""

from dataclasses import dataclass, replace

import anyio
import pytest
import structlog

from backends.sim.virtual_time import run_virtual
from conductor.fleet.failover import Failover
from conductor.fleet.group import open_group
from protocols.backend import LauncherPort, Resources, WorkerState
from protocols.fleet import PlannedRole, Restarts
from protocols.messages import WorkerId
from protocols.sections import Site
from tests.unit.fleet.test_failover import Fleet, Run
from tests.unit.fleet.test_group import rollouts

FAILURES = 100


class States(dict[WorkerId, WorkerState]):
    """What a launcher knows; counts whom it is asked about."""

    asked = 0

    def get(self, key: WorkerId, default: WorkerState | None = None) -> WorkerState | None:  # type: ignore[override]
        States.asked += 1
        return super().get(key, default)


class Counting(Fleet):
    """A launcher whose answers count."""

    async def poll(self) -> dict[WorkerId, WorkerState]:
        return States(await super().poll())


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one failure cost: how often all workers were looked at, and virtual seconds until all was well."""

    looks: float
    took_s: float


def cost_of_a_failure(workers: int) -> Cost:
    """Lose one worker after the other."""

    async def lose() -> Cost:
        fleet, run = Counting(), Run()
        launcher: LauncherPort = fleet  # type: ignore[assignment]
        role = PlannedRole(
            name="rollout", instances=workers, resources=Resources(), strategy="pack", restarts=Restarts()
        )
        quiet = structlog.wrap_logger(structlog.ReturnLogger(), processors=[lambda *_: ""])
        journal = replace(run.journal, log=quiet)
        site, vertices = Site(job_dir="/"), rollouts(workers)
        async with open_group(vertices, launcher, site, start_s=1e5, stop_s=1e5, at_once=True) as group:
            failover = Failover(role, group)
            fleet.launches.clear()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(failover.run, journal)
                await anyio.sleep(1)
                States.asked = 0
                for number in range(FAILURES):
                    worker = WorkerId(f"rollout/{number * 37 % workers}")
                    fleet.crash(worker)
                    failover.suspect(worker)
                    while len(run.incidents) <= number:  # noqa: ASYNC110 - of virtual time
                        await anyio.sleep(0.5)
                tasks.cancel_scope.cancel()
            looks = States.asked / workers / FAILURES
            assert len(fleet.launches) == FAILURES, "nobody else is launched"
            assert await group.missing() == frozenset()
        took_s = sum(incident.seconds for incident in run.incidents)
        return Cost(looks=looks, took_s=took_s / FAILURES)

    return run_virtual(lose)


@pytest.mark.timeout(120)
def test_what_a_failure_costs_does_not_grow_with_the_workers() -> None:
    """Issue E: 10,000 workers with failures: what grows is a look at all of them, which comes every other second.

    While one was launched anew, all were looked at every second to see whether that one had died.
    """
    few, many = cost_of_a_failure(100), cost_of_a_failure(10_000)
    assert many.took_s == pytest.approx(few.took_s)
    assert many.looks < 2.0
    assert many.looks == pytest.approx(few.looks, abs=0.1)
