"""Failovers on the virtual clock: noticed, decided, carried out, told of, and over."""

from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import pytest
import structlog

from conductor.fleet.attendance import Attendance
from conductor.fleet.failover import Failover
from conductor.fleet.group import open_group
from conductor.fleet.journal import Journal
from protocols.backend import LauncherPort, Resources, WorkerState, WorkloadSpec
from protocols.errors import BudgetExhausted, ConductorError, InvariantError, StateLost, Transient, WorkerLost
from protocols.fleet import Cause, PlannedRole, Restarts
from protocols.incidents import Incident
from protocols.messages import WeightVersion, WorkerId
from protocols.pauses import pause_s
from protocols.sections import Site
from tests.unit.fleet.test_group import rollouts

A, B = WorkerId("rollout/0"), WorkerId("rollout/1")
LAUNCH_S = 5.0


class Fleet:
    """A launcher that takes its time, whose workers die on request, and whose launches fail as they are told to.

    Attributes:
        launches: Every launch, in order.
        refusals: What the next launches raise.
        silent: Workers that answer nothing.
        kill_s: Seconds that it takes to end one.
    """

    def __init__(self) -> None:
        self.launches: list[WorkerId] = []
        self.refusals: list[Exception] = []
        self.silent: set[WorkerId] = set()
        self.kill_s = 0.0
        self.polls = 0
        self._states: dict[WorkerId, WorkerState] = {}

    async def launch(self, spec: WorkloadSpec) -> None:
        assert spec.worker_id not in self._states, "it is not killed"
        self.launches.append(spec.worker_id)
        await anyio.sleep(LAUNCH_S)
        if self.refusals:
            raise self.refusals.pop(0)
        self._states[spec.worker_id] = WorkerState()

    async def ask(self, worker: WorkerId) -> None:
        """Answer a probe."""
        await (anyio.sleep_forever() if worker in self.silent else anyio.lowlevel.checkpoint())

    async def poll(self) -> dict[WorkerId, WorkerState]:
        await anyio.lowlevel.checkpoint()
        self.polls += 1
        return dict(self._states)

    async def kill(self, worker: WorkerId) -> None:
        await anyio.sleep(self.kill_s)
        self.silent.discard(worker)
        self._states.pop(worker, None)

    def notify(self, *workers: WorkerId) -> None:
        """Give notice that the places of workers are about to be taken away."""
        for worker in workers:
            self._states[worker] = WorkerState(leaving=True)

    def crash(self, *workers: WorkerId, preempted: bool = False) -> None:
        """Let workers die."""
        for worker in workers:
            self._states[worker] = WorkerState(cause="it crashed", preempted=preempted)


class Run:
    """A run that steps, and keeps what it is told."""

    def __init__(self) -> None:
        self.version = 0
        self.saves = 0
        self.incidents: list[Incident] = []
        self.replaced: list[WorkerId] = []

    async def record(self, incident: Incident) -> None:
        await anyio.lowlevel.checkpoint()
        self.incidents.append(incident)

    @property
    def journal(self) -> Journal:
        return Journal(
            trained=lambda: WeightVersion(self.version),
            record=self.record,
            log=structlog.get_logger(),
            save=self.save,
        )

    def save(self) -> None:
        self.saves += 1


@asynccontextmanager
async def tended(fleet: Fleet, run: Run, *, restarts: Restarts | None = None, **facts: Any) -> AsyncGenerator[Failover]:
    """Two workers that are brought back."""
    launcher: LauncherPort = fleet  # type: ignore[assignment]
    role = PlannedRole(
        name="rollout", instances=2, resources=Resources(), strategy="pack", restarts=restarts or Restarts()
    )
    async with open_group(rollouts(), launcher, Site(job_dir="/"), start_s=60.0, stop_s=5.0, at_once=True) as group:
        fleet.launches.clear()
        failover = Failover(role, group, replaced=run.replaced.append, **facts)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(failover.run, run.journal)
            await anyio.wait_all_tasks_blocked()
            yield failover
            tasks.cancel_scope.cancel()


async def until(condition: Callable[[], bool], within_s: float = 600.0) -> None:
    with anyio.fail_after(within_s):
        while not condition():  # noqa: ASYNC110 - of virtual time, and nothing tells of it
            await anyio.sleep(0.1)


async def test_a_dead_worker_is_noticed_replaced_and_told_of() -> None:
    """I04: an engine died and nobody looked. W10: the failover ends, with a verdict."""
    fleet, run = Fleet(), Run()
    async with tended(fleet, run) as failover:
        fleet.crash(B)
        await until(lambda: bool(run.incidents), within_s=2 + LAUNCH_S + 1)
        (incident,) = run.incidents
        assert (incident.workers, incident.cause, incident.level) == ((B,), "worker", "worker")
        assert (incident.verdict, incident.attempts) == ("restored", 1)
        assert "it crashed" in incident.detail
        assert incident.seconds == pytest.approx(LAUNCH_S)
        assert fleet.launches == run.replaced == [B], "nobody else was launched"
        assert failover.attendance.away == frozenset()


async def test_whoever_finds_a_worker_lost_need_not_wait_for_the_next_look() -> None:
    fleet, run = Fleet(), Run()
    async with tended(fleet, run) as failover:
        await anyio.sleep(0.1)
        fleet.crash(A)
        began = anyio.current_time()
        await failover.restored(A, WorkerLost(worker=A, cause="it crashed"))
        assert anyio.current_time() - began == pytest.approx(LAUNCH_S)
        assert failover.attendance.away == frozenset()


async def test_a_worker_that_was_only_suspected_is_not_replaced() -> None:
    """A call that was cut, or a late failure of the one before it, must not cost a worker."""
    fleet, run = Fleet(), Run()
    async with tended(fleet, run) as failover:
        await failover.restored(A, WorkerLost(worker=A, cause="so somebody says"))
    assert fleet.launches == []
    assert run.incidents == []


async def test_the_same_worker_may_crash_again_and_is_brought_back_again() -> None:
    """W10: the second crash of a role was ignored for ever, since a flag was never cleared."""
    fleet, run = Fleet(), Run()
    async with tended(fleet, run):
        for count in range(1, 4):
            fleet.crash(A)
            await until(lambda count=count: len(run.incidents) == count)
        assert [incident.verdict for incident in run.incidents] == ["restored"] * 3


async def test_failovers_start_no_further_tasks_and_look_no_more_often() -> None:
    """W11: each failover started one more monitor loop."""
    fleet, run = Fleet(), Run()
    async with tended(fleet, run):
        before = len(anyio.get_running_tasks())
        await anyio.sleep(0.5)
        fleet.polls = 0
        await anyio.sleep(100)
        looks = fleet.polls
        for count in range(1, 4):
            fleet.crash(A)
            await until(lambda count=count: len(run.incidents) == count)
        fleet.polls = 0
        await anyio.sleep(100)
        assert abs(fleet.polls - looks) <= 1
        assert len(anyio.get_running_tasks()) == before


async def test_those_that_die_together_are_one_failover() -> None:
    fleet, run = Fleet(), Run()
    async with tended(fleet, run):
        fleet.crash(A, B)
        await until(lambda: bool(run.incidents))
        (incident,) = run.incidents
        assert incident.workers == (A, B)
        assert incident.seconds == pytest.approx(LAUNCH_S), "they are launched at once"


async def test_one_that_dies_while_another_is_replaced_is_next() -> None:
    fleet, run = Fleet(), Run()
    async with tended(fleet, run):
        fleet.crash(A)
        await anyio.sleep(3.0)
        fleet.crash(B)
        await until(lambda: len(run.incidents) == 2)
        assert [incident.workers for incident in run.incidents] == [(A,), (B,)]


async def test_a_preemption_is_none_of_its_failures() -> None:
    """W09: a place that is taken away again and again must not use up what crashes are allowed."""
    fleet, run = Fleet(), Run()
    async with tended(fleet, run, restarts=Restarts(worker=1, preemption=5)):
        for count in range(1, 5):
            fleet.crash(A, preempted=True)
            await until(lambda count=count: len(run.incidents) == count)
        fleet.crash(A)
        await until(lambda: len(run.incidents) == 5)
        causes = [incident.cause for incident in run.incidents]
        assert causes == ["preemption"] * 4 + ["worker"]


async def test_a_launch_that_fails_for_a_while_is_tried_again_in_the_same_failover() -> None:
    fleet, run = Fleet(), Run()
    async with tended(fleet, run, restarts=Restarts(worker=1, controller=3)):
        fleet.refusals = [Transient("no room for another process")] * 2
        fleet.crash(A)
        await until(lambda: bool(run.incidents))
        (incident,) = run.incidents
        assert (incident.attempts, incident.cause, incident.verdict) == (3, "worker", "restored")
        assert "no room" in incident.detail


async def ended(fleet: Fleet, run: Run, harm: Callable[[], None], **facts: Any) -> ConductorError:
    """Return what a failover gives the job up with."""
    with pytest.RaisesGroup(ConductorError) as raised:
        async with tended(fleet, run, **facts):
            for _ in range(20):
                harm()
                await anyio.sleep(120)
    (error,) = raised.value.exceptions
    assert isinstance(error, ConductorError)
    return error


async def test_a_worker_that_dies_again_and_again_takes_its_role_and_then_the_job_with_it() -> None:
    """Levels: worker, role, job; the budget is named, and the record tells of it."""
    fleet, run = Fleet(), Run()
    error = await ended(fleet, run, partial(fleet.crash, A), restarts=Restarts(worker=2))
    assert isinstance(error, BudgetExhausted)
    assert "fleet.roles.rollout.restarts.worker" in str(error)
    told = [(incident.level, incident.verdict, incident.workers) for incident in run.incidents]
    assert told == [
        ("worker", "restored", (A,)),
        ("worker", "restored", (A,)),
        ("role", "restored", (A, B)),
        ("job", "given_up", (A,)),
    ]


async def test_progress_of_the_run_refills_the_budget() -> None:
    fleet, run = Fleet(), Run()
    async with tended(fleet, run, restarts=Restarts(worker=1)):
        for count in range(1, 6):
            fleet.crash(A)
            await until(lambda count=count: len(run.incidents) == count)
            run.version += 2
        assert {incident.level for incident in run.incidents} == {"worker"}


@pytest.mark.parametrize("preempted", [False, True])
async def test_without_anybody_who_holds_what_was_trained_the_run_is_to_decide(preempted: bool) -> None:
    """A trainer that is launched anew would go on from the wrong parameters: only the whole run can go back."""
    fleet, run = Fleet(), Run()
    error = await ended(fleet, run, lambda: fleet.crash(A, B, preempted=preempted), holds_state=True)
    assert isinstance(error, StateLost)
    assert (error.workers, error.preempted) == ((A, B), preempted)
    assert fleet.launches == []
    assert run.incidents == [], "it is told of by whoever decides"


async def test_a_bug_of_the_controller_is_no_reason_to_try_again() -> None:
    fleet, run = Fleet(), Run()
    fleet.refusals = []

    def harm() -> None:
        fleet.refusals = [InvariantError("launched twice")]
        fleet.crash(A)

    assert isinstance(await ended(fleet, run, harm), InvariantError)
    assert fleet.launches == [A]


async def test_a_worker_that_answers_no_probe_is_taken_for_dead() -> None:
    """Hangs are found: it lives, and says nothing."""
    fleet, run = Fleet(), Run()
    async with tended(fleet, run, probe=fleet.ask, answer_s=1.0):
        await anyio.sleep(60)
        assert fleet.launches == [], "one that answers is left alone"
        fleet.silent.add(B)
        await until(lambda: bool(run.incidents), within_s=30.0)
        (incident,) = run.incidents
        assert incident.workers == (B,)
        assert "3 probes of 1 s unanswered" in incident.detail
        assert fleet.launches == [B]


async def test_nobody_waits_for_a_worker_after_the_run() -> None:
    """What the end of a run still asks must not wait for workers that nobody brings back any more."""
    fleet, run = Fleet(), Run()
    async with tended(fleet, run) as failover:
        pass
    fleet.crash(A)
    with pytest.raises(WorkerLost, match="gone"):
        await failover.restored(A, WorkerLost(worker=A, cause="gone"))


async def test_a_worker_is_away_from_the_first_sign_until_it_is_there_again() -> None:
    """W10: calls went to it meanwhile, and each of them failed."""
    fleet, run = Fleet(), Run()
    async with tended(fleet, run) as failover:
        fleet.crash(A)
        await until(lambda: bool(fleet.launches))
        assert failover.attendance.away == {A}
        await until(lambda: bool(run.incidents))
        assert failover.attendance.away == frozenset()


async def test_all_of_a_role_that_is_launched_anew_are_away() -> None:
    fleet, run = Fleet(), Run()
    async with tended(fleet, run, restarts=Restarts(worker=0)) as failover:
        fleet.crash(A)
        await until(lambda: bool(fleet.launches))
        assert failover.attendance.away == {A, B}


async def test_a_worker_that_dies_again_is_launched_after_a_pause() -> None:
    """I61: a budget that is spent within a second is none."""
    fleet, run = Fleet(), Run()
    async with tended(fleet, run, restarts=Restarts(worker=3)):
        for count in range(1, 4):
            fleet.crash(A)
            await until(lambda count=count: len(run.incidents) == count)
        paused = [incident.seconds - LAUNCH_S for incident in run.incidents]
        assert paused == pytest.approx([0.0, pause_s(1, A), pause_s(2, A)])


async def test_the_record_says_why_a_job_was_given_up() -> None:
    fleet, run = Fleet(), Run()
    error = await ended(fleet, run, lambda: fleet.crash(A), holds_state=True, restarts=Restarts(worker=0))
    assert run.incidents[0].detail.endswith(f"; then {error}")


async def test_a_probe_that_finds_a_worker_gone_has_it_looked_at_at_once() -> None:
    fleet, run = Fleet(), Run()

    async def ask(worker: WorkerId) -> None:
        await anyio.sleep(0.5)
        if worker == A and not fleet.launches:
            fleet.crash(A)
            raise WorkerLost(worker=A, cause="it hung up")

    async with tended(fleet, run, probe=ask, answer_s=1.0):
        began = anyio.current_time()
        await until(lambda: bool(fleet.launches))
        assert anyio.current_time() - began == pytest.approx(2.5, abs=0.11), "the first probe comes after two seconds"


async def test_two_probes_that_are_not_answered_cost_no_worker() -> None:
    """A worker that was busy for a while must not be killed for it; the third silence is one too many."""
    fleet, run = Fleet(), Run()
    async with tended(fleet, run, probe=fleet.ask, answer_s=1.0):
        fleet.silent.add(B)
        await anyio.sleep(8.9)
        assert fleet.launches == []
        await anyio.sleep(0.2)
        assert fleet.launches == [B], "and is looked at at once"


async def test_whoever_waits_for_a_worker_is_let_go_when_the_run_ends() -> None:
    """The end of a run would wait for a worker that nobody brings back any more."""
    attendance, gone = Attendance(), []

    async def wait() -> None:
        await attendance.wait_for([A])
        gone.append(anyio.current_time())

    attendance.leave(A)
    async with anyio.create_task_group() as tasks:
        with attendance.tended():
            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(1.0):
            await until(lambda: bool(gone))


async def test_notice_of_a_preemption_drains_first_and_then_replaces() -> None:
    """Issue E: what it works on is finished or handed back before it ends; its failures have another budget."""
    fleet, run = Fleet(), Run()
    drained: list[tuple[tuple[WorkerId, ...], float, list[WorkerId]]] = []

    async def drain(workers: Collection[WorkerId]) -> None:
        await anyio.sleep(7.0)
        drained.append((tuple(workers), anyio.current_time(), list(fleet.launches)))

    async with tended(fleet, run, restarts=Restarts(worker=0)) as failover:
        failover.drain = drain
        fleet.notify(B)
        await until(lambda: bool(run.incidents))
        (incident,) = run.incidents
        assert [(workers, launched) for workers, _, launched in drained] == [((B,), [])]
        assert (incident.workers, incident.cause, incident.level, incident.verdict) == (
            (B,),
            "preemption",
            "worker",
            "restored",
        )
        assert "about to be taken away" in incident.detail
        assert incident.seconds == pytest.approx(7.0 + LAUNCH_S)
        assert run.replaced == [B]
        await anyio.sleep(60)
        assert len(drained) == 1, "once for each notice"
        fleet.notify(B)
        await until(lambda: len(run.incidents) == 2)
        assert len(drained) == 2, "the next one is heeded again"


async def test_one_that_dies_before_its_drain_is_over_is_replaced_all_the_same() -> None:
    fleet, run = Fleet(), Run()

    async def drain(workers: Collection[WorkerId]) -> None:
        await anyio.sleep(3.0)
        fleet.crash(*workers, preempted=True)

    async with tended(fleet, run) as failover:
        failover.drain = drain
        fleet.notify(B)
        await until(lambda: bool(run.incidents))
        await anyio.sleep(60)
        assert fleet.launches == [B]
        assert len(run.incidents) == 1


async def test_a_worker_that_cannot_be_drained_works_until_it_is_gone() -> None:
    fleet, run = Fleet(), Run()
    async with tended(fleet, run) as failover:
        fleet.notify(B)
        await anyio.sleep(60)
        assert fleet.launches == []
        assert not failover.attendance.away
        assert not run.saves
        fleet.crash(B, preempted=True)
        await until(lambda: bool(run.incidents))


async def test_notice_to_those_who_hold_what_was_trained_has_it_saved() -> None:
    """To end one of them early would cost what it holds; a checkpoint in time costs nothing."""
    fleet, run = Fleet(), Run()
    async with tended(fleet, run, holds_state=True):
        fleet.notify(A, B)
        await anyio.sleep(60)
        assert run.saves == 1
        assert fleet.launches == []


async def test_a_worker_that_left_and_joined_anew_begins_with_a_clean_slate() -> None:
    """Its name is used again; its failures, its absence and the notice that it got are not."""
    fleet, run = Fleet(), Run()
    drained: list[WorkerId] = []

    async def drain(workers: Collection[WorkerId]) -> None:
        await anyio.lowlevel.checkpoint()
        drained.extend(workers)

    one, two = rollouts()
    async with tended(fleet, run, restarts=Restarts(worker=1)) as failover:
        fleet.crash(B)
        await until(lambda: len(run.incidents) == 1)
        fleet.notify(B)
        await until(lambda: failover.attendance.away == frozenset())
        await anyio.sleep(10)
        failover.attendance.leave(B)
        await failover.shrink([one])
        assert failover.members == (A,)
        assert failover.attendance.away == frozenset()
        await failover.grow([one, two])
        assert failover.members == (A, B)
        failover.drain = drain
        fleet.notify(B)
        await until(lambda: drained == [B])
        await until(lambda: len(run.incidents) == 2)
        fleet.crash(B)
        await until(lambda: len(run.incidents) == 3)
        assert run.incidents[-1].level == "worker", "once is not twice"


async def test_what_was_done_about_lost_workers_stands_beside_why_they_were_lost() -> None:
    """Where workers left their node, the failover was one of the level node."""
    fleet, run = Fleet(), Run()
    losses: list[tuple[WorkerId, Cause]] = []

    async def move(workers: Collection[WorkerId], _journal: Journal) -> tuple[str, ...]:
        await anyio.lowlevel.checkpoint()
        assert losses == [(B, "worker")], "it is counted before anybody looks for another place"
        return tuple(f"{worker} is moved" for worker in workers)

    async with tended(fleet, run) as failover:
        failover.lose = lambda workers, cause: losses.extend((worker, cause) for worker in workers)
        failover.move = move
        fleet.crash(B)
        await until(lambda: bool(run.incidents))
        assert run.incidents[0].detail == f"worker {B} is lost: it crashed; then {B} is moved"
        assert run.incidents[0].level == "node"


async def test_a_new_node_is_checked_and_who_is_on_one_that_does_not_pass_moves_again() -> None:
    """Issue E: nodes are checked again after a failover that led to others; the others' are as well."""
    fleet, run = Fleet(), Run()
    verdicts: list[tuple[WorkerId, ...]] = [(A,), ()]
    losses: list[WorkerId] = []
    away: list[frozenset[WorkerId]] = []

    async def move(workers: Collection[WorkerId], _journal: Journal) -> tuple[str, ...]:
        await anyio.lowlevel.checkpoint()
        away.append(failover.attendance.away)
        return tuple(f"{worker} is moved" for worker in workers)

    async def check(_journal: Journal) -> tuple[WorkerId, ...]:
        await anyio.lowlevel.checkpoint()
        return verdicts.pop(0)

    async with tended(fleet, run) as failover:
        failover.move, failover.check = move, check
        failover.lose = lambda workers, _cause: losses.extend(workers)
        fleet.crash(B)
        await until(lambda: bool(run.incidents))
    (incident,) = run.incidents
    assert (incident.workers, incident.level, incident.attempts) == ((A, B), "node", 2)
    assert fleet.launches == [B, A, B]
    assert f"the nodes of {A} did not pass the check" in incident.detail
    assert verdicts == []
    assert losses == [B, A], "who has moved runs well, and its new domain has lost nobody"
    assert away == [{B}, {A, B}], "who is on a node that must not be used cannot be called"
