"""Whole simulated runs in which engines are told that their places go away."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import anyio
import msgspec
import pytest

from backends.sim import Config
from backends.sim.launcher import SimLauncher
from backends.sim.virtual_time import run_virtual
from backends.sim.world import open_world
from conductor.conductor import Conductor
from conductor.fleet.failover import Failover
from conductor.fleet.journal import Journal
from conductor.inspection import inspect
from conductor.ports import Workloads
from conductor.result import RunResult
from conductor.simulation.laws import broken
from conductor.simulation.life import Life, in_simulation
from conductor.simulation.life import live as live_simulated
from conductor.validation import site_of
from protocols.aio import open_tasks
from protocols.faults import FaultPlan, parse_plan
from protocols.fleet import Cause
from protocols.incidents import Incident
from protocols.ledger import LedgerEvent, Record
from protocols.messages import WorkerId
from tests.support.runs import run_config

AT_S = 30.0


@dataclass(kw_only=True)
class Lived:
    """What became of a run."""

    result: RunResult
    events: tuple[LedgerEvent, ...]
    unstopped: list[str]

    @property
    def incidents(self) -> list[tuple[tuple[WorkerId, ...], Cause, str]]:
        return [(one.workers, one.cause, one.verdict) for one in self.events if isinstance(one, Incident)]


def live(worker: str, **fields: Any) -> Lived:
    """Run a job in which one worker is given notice."""

    async def conduct() -> Lived:
        options: dict[str, Any] = {"sample": "constant:4.0", "train": "constant:1.0", "publish": "constant:0.1"}
        base: Mapping[str, Any] = {"steps": 20, "batch_groups": 4, "engines": 2, "max_age": 1}
        cfg = in_simulation(run_config(**{**base, **fields}), options)
        async with open_world(Config(**options), site_of(cfg)) as world, open_tasks() as tasks:
            launcher = world.backend.launcher
            assert isinstance(launcher, SimLauncher)

            async def notify() -> None:
                await anyio.sleep(AT_S)
                launcher.notify(worker)

            tasks.start_soon(notify)
            workloads = Workloads(prompts=world.prompts, ledger=world.ledger, trackers=())
            result = await Conductor.run(cfg, backend=world.backend, workloads=workloads)
            return Lived(result=result, events=await world.record(), unstopped=world.observed.unstopped)

    return run_virtual(conduct)


@pytest.mark.parametrize("engines", [1, 2])
def test_an_engine_that_is_given_notice_finishes_its_groups_and_is_replaced(engines: int) -> None:
    """Issue E: a preemption notice drains first: no group is generated twice for it."""
    lived = live("rollout/0", engines=engines)
    assert lived.incidents == [(("rollout/0",), "preemption", "restored")]
    assert lived.result.steps == 20
    assert lived.result.failures == {}, "no group was tried again"
    assert lived.unstopped == []
    assert inspect(Record(events=lived.events, lost=0)).balanced


def test_what_an_engine_does_not_finish_in_time_is_handed_back() -> None:
    deadlines = msgspec.structs.replace(run_config().deadlines, publish=1.0)
    lived = live("rollout/0", deadlines=deadlines)
    assert lived.incidents == [(("rollout/0",), "preemption", "restored")]
    assert lived.result.steps == 20
    assert set(lived.result.failures) == {"WorkerLost"}
    assert lived.unstopped == []
    assert inspect(Record(events=lived.events, lost=0)).balanced


@pytest.mark.parametrize("worker", ["policy/0", "episode/0", "reward/0", "nobody/0"])
def test_notice_to_others_changes_nothing_before_they_are_gone(worker: str) -> None:
    lived = live(worker)
    assert lived.incidents == []
    assert lived.result.steps == 20


NOTICE = parse_plan("notice@Engine:rollout/0@6+25")


def simulated(plan: FaultPlan, **fields: Any) -> Life:
    options: dict[str, Any] = {"sample": "constant:4.0", "train": "constant:1.0", "publish": "constant:0.1"}
    base: Mapping[str, Any] = {"steps": 20, "batch_groups": 4, "engines": 2, "max_age": 1}
    deadlines = msgspec.structs.replace(run_config().deadlines, publish=30.0)
    cfg = run_config(**{**base, "deadlines": deadlines, **fields})
    return live_simulated(in_simulation(cfg, options), faults=plan)


def lost_in(life: Life) -> list[tuple[Cause, str]]:
    return [(one.cause, one.verdict) for one in life.events if isinstance(one, Incident)]


@pytest.mark.parametrize("engines", [1, 2])
def test_a_fault_plan_gives_notice_and_an_engine_that_heeds_it_loses_nothing(engines: int) -> None:
    life = simulated(NOTICE, engines=engines)
    assert life.result is not None, life.error
    assert lost_in(life) == [("preemption", "restored")]
    assert life.result.failures == {}
    assert (life.observed.unheeded, broken(life, NOTICE)) == ([], ())


def test_who_is_told_too_late_loses_what_it_writes_and_breaks_no_law() -> None:
    late = parse_plan("notice@Engine:rollout/0@6.5+0.5")
    life = simulated(late)
    assert life.result is not None, life.error
    assert life.result.steps == 20
    assert life.observed.unheeded == ["rollout/0"]
    assert lost_in(life) == [("preemption", "restored")]
    assert broken(life, late) == ()


def test_a_trainer_that_was_told_ends_the_run_where_nothing_is_written() -> None:
    told = parse_plan("notice@Trainer@6+10")
    life = simulated(told)
    assert "no checkpoint to go back to" in str(life.error)
    assert broken(life, told) == ()


def test_a_controller_that_does_not_listen_breaks_law_8(monkeypatch: pytest.MonkeyPatch) -> None:
    async def deaf(_self: Failover, _leaving: tuple[WorkerId, ...], _journal: Journal) -> None:
        await anyio.sleep(1e3)

    monkeypatch.setattr(Failover, "_heed", deaf)
    life = simulated(NOTICE, steps=40)
    assert broken(life, NOTICE) == ("law 8: told 25 s before and there all the same: rollout/0",)
