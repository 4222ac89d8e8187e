"""A job on processes, with two ranks and two engines, some of which are killed while it trains."""

import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from backends import processes
from conductor import Conductor, RunResult, load_config
from conductor.control.client import ask
from conductor.control.messages import Reply, Request
from conductor.inspection import incidents, inspect, read_record
from conductor.result import Accounts
from protocols.aio import Doorbell
from protocols.backend import Backend
from protocols.incidents import Incident, Scaled
from protocols.ledger import Stepped
from protocols.messages import WorkerId
from protocols.sections import Site
from protocols.tracking import StepRecord

HERE = Path(__file__).parent
JOB = HERE.parents[1] / "examples" / "reverse" / "job.toml"
SMALL = [
    "batch_groups=4",
    "group_size=4",
    "sampling.max_tokens=2",
    f"prompts.function={HERE / 'two_digits.py'}:prompt",
    f"reward.function={HERE / 'two_digits.py'}:reward",
    "reward.cheap=true",
    "engine.threads=1",
    "train.threads=1",
    "engine.deterministic=true",
]
FLEET = [
    "backend.kind=processes",
    "engines=2",
    "fleet.roles.policy.instances=2",
    'fleet.environment={OMP_NUM_THREADS="1"}',
]
RANKS = [WorkerId("policy/0"), WorkerId("policy/1")]
ENGINES = [WorkerId("rollout/0"), WorkerId("rollout/1")]
EPISODE, REWARD = WorkerId("episode/0"), WorkerId("reward/0")

pytestmark = [pytest.mark.real_time, pytest.mark.slow, pytest.mark.timeout(500)]


class Steps:
    """Counts the steps of a run, and lets others wait for them."""

    def __init__(self) -> None:
        self.done = 0
        self._bell = Doorbell()

    def phase(self, name: str) -> None:
        """Let it pass."""

    def stepped(self, record: StepRecord, accounts: Accounts) -> None:
        """Count."""
        self.done += 1
        self._bell.ring()

    async def wait_for(self, more: int) -> None:
        """Wait for some more steps."""
        until = self.done + more
        while self.done < until:
            await self._bell.wait()


class Fleet:
    """The processes of a run."""

    def __init__(self, backend: Backend) -> None:
        self._launcher = backend.launcher

    async def pids(self) -> dict[WorkerId, int | None]:
        return {name: state.pid for name, state in (await self._launcher.poll()).items() if state.running}

    async def kill(self, worker: WorkerId) -> None:
        """End a worker as the system does that has no memory left."""
        pid = (await self.pids())[worker]
        assert pid is not None
        os.kill(pid, signal.SIGKILL)


@asynccontextmanager
async def open_fleet() -> AsyncGenerator[tuple[Backend, Fleet]]:
    async with processes.open(processes.Config(), Site(job_dir=".")) as backend:
        yield backend, Fleet(backend)


async def run(run_dir: Path, *overrides: str) -> RunResult:
    return await Conductor.run(load_config(JOB, overrides=[*SMALL, *overrides], run_dir=str(run_dir)))


async def test_ranks_and_engines_in_processes_train_what_one_process_trains(tmp_path: Path) -> None:
    """Issue E: single-process losses to 1e-5, and the same rewards, at max_age 0."""
    plain = await run(tmp_path / "plain", "steps=3")
    fleet = await run(tmp_path / "fleet", "steps=3", *FLEET)
    for name, tolerance in (("reward/mean", 0.0), ("loss", 1e-5), ("grad_norm", 1e-5)):
        first = [record.metrics[name] for record in plain.metrics]
        second = [record.metrics[name] for record in fleet.metrics]
        assert second == pytest.approx(first, abs=tolerance), name


async def test_a_run_is_scaled_while_it_trains(tmp_path: Path) -> None:
    """Issue E: ``conductor scale``: engines join and leave a live run, and no other process changes."""
    folder = tmp_path / "run"
    cfg = load_config(
        JOB, overrides=[*SMALL, *FLEET, "steps=1000000", "fleet.roles.rollout.max=3"], run_dir=str(folder)
    )
    steps = Steps()
    replies: list[Reply | None] = []

    async def asked(size: int, role: str = "rollout") -> None:
        request = Request(command="scale", role=role, size=size)
        replies.append(await anyio.to_thread.run_sync(lambda: ask(folder, request, patience_s=200.0)))

    async with open_fleet() as (backend, fleet):

        async def conduct() -> None:
            with anyio.CancelScope() as scope:
                tasks.start_soon(scale, scope)
                await Conductor.run(cfg, backend=backend, observer=steps, control=True)

        async def scale(scope: anyio.CancelScope) -> None:
            await steps.wait_for(2)
            before = await fleet.pids()
            await asked(3)
            await steps.wait_for(2)
            larger = await fleet.pids()
            await asked(4)
            await asked(3, "policy")
            await asked(1)
            await steps.wait_for(2)
            smaller = await fleet.pids()
            assert {name: larger[name] for name in before} == before
            assert larger.keys() - before.keys() == {"rollout/2"}
            assert smaller == {name: pid for name, pid in before.items() if name != ENGINES[1]}
            scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(conduct)
        assert await fleet.pids() == {}
    assert [(reply.done, reply.refused) for reply in replies if reply is not None and not reply.error] == [
        (str(one), False) for one in incidents(read_record(cfg))
    ]
    refused = [reply.error for reply in replies if reply is not None and reply.refused]
    assert len(refused) == 2
    assert "rollout may have from 1 to 3" in refused[0]
    assert "ranks that train together" in refused[1]
    record = read_record(cfg)
    assert [(one.before, one.after, one.verdict) for one in record.events if isinstance(one, Scaled)] == [
        (2, 3, "scaled"),
        (3, 1, "scaled"),
    ]
    assert inspect(record).balanced


async def test_a_killed_worker_is_replaced_and_nobody_else_is(tmp_path: Path) -> None:
    """I04, W11: the run goes on with balanced books; killing one changes no other process.

    Of an engine and of the first rank ``examples/fleet/drill.py`` shows it, which test_examples.py runs.
    """
    cfg = load_config(JOB, overrides=[*SMALL, *FLEET, "steps=1000000"], run_dir=str(tmp_path / "run"))
    victims = [EPISODE, RANKS[1], REWARD]
    async with open_fleet() as (backend, fleet):
        steps = Steps()

        async def conduct() -> None:
            with anyio.CancelScope() as scope:
                tasks.start_soon(kill_one_after_the_other, scope)
                await Conductor.run(cfg, backend=backend, observer=steps)

        async def kill_one_after_the_other(scope: anyio.CancelScope) -> None:
            await steps.wait_for(2)
            for number, victim in enumerate(victims, start=1):
                before = await fleet.pids()
                await fleet.kill(victim)
                while len(incidents(read_record(cfg))) < number:
                    await steps.wait_for(1)
                await steps.wait_for(2)
                after = await fleet.pids()
                assert {name for name in before if after.get(name) != before[name]} == {victim}
                assert after.keys() == before.keys()
            scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(conduct)
        assert await fleet.pids() == {}
    record = read_record(cfg)
    found = inspect(record)
    assert found.balanced
    assert found.steps >= 2 + 2 * len(victims)
    told = [(one.workers, one.cause, one.level, one.verdict) for one in incidents(record) if isinstance(one, Incident)]
    assert told == [((victim,), "worker", "worker", "restored") for victim in victims]


async def test_a_run_whose_whole_trainer_is_killed_goes_back_to_its_last_checkpoint(tmp_path: Path) -> None:
    """Issue E: the loss of all ranks is survived by a restart from the last checkpoint with the books balanced."""
    own = ["engines=1", "steps=12", "checkpoint.every=3"]
    cfg = load_config(JOB, overrides=[*SMALL, *FLEET, *own], run_dir=str(tmp_path / "run"))
    async with open_fleet() as (backend, fleet):
        steps = Steps()

        async def kill_the_trainer() -> None:
            await steps.wait_for(5)
            pids = await fleet.pids()
            for rank in RANKS:
                os.kill(pids[rank] or 0, signal.SIGKILL)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kill_the_trainer)
            result = await Conductor.run(cfg, backend=backend, observer=steps)
        assert await fleet.pids() == {}
    assert result.steps == 12
    assert [record.step for record in result.metrics] == list(range(1, 13))
    record = read_record(cfg)
    found = inspect(record)
    assert found.balanced
    assert (found.steps, found.lives) == (12, 2)
    (incident,) = [one for one in record.events if isinstance(one, Incident)]
    assert set(incident.workers) <= set(RANKS)
    assert (incident.cause, incident.level, incident.verdict, incident.attempts) == ("worker", "job", "restored", 1)
    assert incident.version >= 5


async def test_an_engine_that_gets_notice_finishes_its_groups_and_is_replaced(tmp_path: Path) -> None:
    """Issue E: a preemption notice drains first: nothing is generated twice, and nobody else is another process."""
    own = ["fleet.roles.policy.instances=1", "steps=1000000"]
    cfg = load_config(JOB, overrides=[*SMALL, *FLEET, *own], run_dir=str(tmp_path / "run"))
    async with open_fleet() as (backend, fleet):
        steps = Steps()

        async def notify(scope: anyio.CancelScope) -> None:
            await steps.wait_for(2)
            before = await fleet.pids()
            os.kill(before[ENGINES[1]] or 0, signal.SIGUSR1)
            while not incidents(read_record(cfg)):
                await steps.wait_for(1)
            await steps.wait_for(2)
            after = await fleet.pids()
            assert {name for name in before if after.get(name) != before[name]} == {ENGINES[1]}
            scope.cancel()

        async with anyio.create_task_group() as tasks:
            with anyio.CancelScope() as scope:
                tasks.start_soon(notify, scope)
                await Conductor.run(cfg, backend=backend, observer=steps)
    record = read_record(cfg)
    (incident,) = [one for one in record.events if isinstance(one, Incident)]
    assert (incident.workers, incident.cause, incident.verdict) == ((ENGINES[1],), "preemption", "restored")
    assert inspect(record).balanced
    last = [one for one in record.events if isinstance(one, Stepped)][-1]
    assert last.failures == {}, "no group was tried again"
