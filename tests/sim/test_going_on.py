"""A run that is stopped and goes on in the same folder: what it finds there, what it refuses, what it tells again."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import ref

import anyio
import msgspec
import pytest
from anyio.lowlevel import checkpoint

from backends.ledgers.memory import MemoryLedger
from backends.sim.prompts import ScriptedPrompts
from conductor import checkpoints
from conductor.conductor import Conductor
from conductor.config import CheckpointConfig, EvaluationConfig, FleetConfig, RoleConfig, RunConfig
from conductor.jobfile import JOB_FILE
from conductor.past import evaluations_of, steps_of
from conductor.result import RunResult
from protocols.backend import LauncherPort, WorkloadSpec
from protocols.errors import ConductorError, ConfigError, CorruptLedger, EngineBusy, UserError
from protocols.incidents import Incident
from protocols.ledger import AbortConfirmed, Admitted, Evaluated, LedgerEvent, Resumed, Stepped
from protocols.messages import LeaseId, WeightVersion, WorkerId
from protocols.prompts import SourceState
from protocols.rollouts import RolloutLease
from protocols.tracking import StepRecord
from tests.support.runs import open_backend_over, run_config, workloads_of
from tests.support.scripted.workloads import ScriptedWorkloads, scripted_workloads
from tests.support.texts import exactly

STOPPED_AT_S = 5.0
"""Of a run whose steps take two seconds: two are closed."""


class ForgetfulTracker:
    """Holds the steps that it is told of, and has lost the last one whenever it is asked to go back.

    Attributes:
        rewound: The steps that it was asked to go back to.
    """

    def __init__(self) -> None:
        self.held: list[int] = []
        self.rewound: list[int] = []

    async def log(self, record: StepRecord) -> None:
        await checkpoint()
        self.held.append(record.step)

    async def rewind(self, step: int) -> int:
        await checkpoint()
        self.rewound.append(step)
        self.held = [held for held in self.held if held < step]
        return step - 1


class Page(list[LedgerEvent]):
    """What a ledger gave to a reader; a weak reference can point to it, as it cannot to a tuple."""


class PagingLedger(MemoryLedger):
    """Gives a few events at a time; knows where it was read from, and how many pages somebody still held meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.read_from: list[int] = []
        self.held: list[int] = []
        self._pages: list[ref[Page]] = []

    async def replay(self, after: int = 0) -> Any:
        self._look()
        self.read_from.append(after)
        page = Page((await super().replay(after))[:5])
        self._pages.append(ref(page))
        return page

    async def append(self, events: tuple[LedgerEvent, ...]) -> None:
        self._look()
        await super().append(events)

    def _look(self) -> None:
        self.held.append(sum(page() is not None for page in self._pages))


class Grounded:
    """A launcher that launches nobody."""

    def __init__(self, launcher: LauncherPort) -> None:
        self._launcher = launcher

    def __getattr__(self, name: str) -> Any:
        return getattr(self._launcher, name)

    async def launch(self, spec: WorkloadSpec) -> None:
        raise AssertionError(f"{spec.worker_id} was launched")


class Folder:
    """What several lives of one run share."""

    def __init__(self, run_dir: Path, *, evaluated: bool = False) -> None:
        self.run_dir = run_dir
        self.evaluated = evaluated
        self.ledger = MemoryLedger()
        self.tracker = ForgetfulTracker()
        self.compact_events = 0

    def cfg(self, steps: int = 4) -> RunConfig:
        return run_config(
            steps=steps,
            run_dir=str(self.run_dir),
            checkpoint=CheckpointConfig(every=1, compact_events=self.compact_events),
            evaluation=EvaluationConfig(every=1, samples=1) if self.evaluated else None,
        )

    async def live(self, scripted: ScriptedWorkloads | None = None, *, steps: int = 4) -> RunResult:
        scripted = scripted or scripted_workloads(100)
        workloads = replace(
            workloads_of(scripted, self.ledger), trackers=(self.tracker,), evaluation_prompts=ScriptedPrompts(2)
        )
        async with open_backend_over(scripted) as backend:
            return await Conductor.run(self.cfg(steps), backend=backend, workloads=workloads, resume=True)

    async def be_stopped(self, scripted: ScriptedWorkloads | None = None, *, at_s: float = STOPPED_AT_S) -> None:
        with anyio.move_on_after(at_s) as scope:
            await self.live(scripted)
        assert scope.cancelled_caught

    async def evaluated_versions(self) -> list[int]:
        return [event.record.step for event in await self.ledger.replay() if isinstance(event, Evaluated)]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


async def test_each_step_is_in_the_trackers_once(folder: Folder) -> None:
    """Issue C: trackers are set back to the checkpoint, and told again what they had lost."""
    await folder.be_stopped()
    await folder.live()
    assert folder.tracker.rewound == [2]
    assert folder.tracker.held == [1, 2, 3, 4]


async def test_the_record_is_read_once_and_let_go_before_the_run_goes_on(folder: Folder) -> None:
    """It was read by who looked for quarantined nodes, then by who rebuilt the table: seconds, and a gigabyte."""
    folder.ledger = ledger = PagingLedger()
    await folder.be_stopped()
    ledger.read_from.clear()
    ledger.held.clear()
    events = len(ledger._events)
    await folder.live()
    assert ledger.read_from == [*range(0, events, 5), events], "one page behind the other, and once"
    assert max(ledger.held) == 1
    assert ledger.held[-1] == 0


async def test_an_event_that_contradicts_is_named_by_its_number_in_the_record(folder: Folder) -> None:
    """Whoever mends a record counts from its beginning, not from that of a page."""
    folder.ledger = ledger = PagingLedger()
    await folder.be_stopped()
    number = len(ledger._events)
    assert number > 5
    await ledger.append((AbortConfirmed(lease_id=LeaseId("L999")),))
    with pytest.raises(
        CorruptLedger, match=exactly(f"event {number} of the record (AbortConfirmed): L999 was never admitted")
    ):
        await folder.live()


async def test_a_changed_job_is_refused_before_anything_is_launched(folder: Folder) -> None:
    """Engines that load a model for minutes were launched for a run that could not go on."""
    await folder.be_stopped()
    fleet = FleetConfig(roles={"judge": RoleConfig(command=("true",))})
    cfg = msgspec.structs.replace(folder.cfg(), batch_groups=3, fleet=fleet)
    workloads = workloads_of(scripted_workloads(100), folder.ledger)
    async with open_backend_over(scripted_workloads(100)) as backend:
        grounded = replace(backend, launcher=Grounded(backend.launcher))
        with pytest.raises(ConfigError, match="batch_groups"):
            await Conductor.run(cfg, backend=grounded, workloads=workloads, resume=True)


async def test_what_was_lost_in_an_earlier_life_is_told_after_the_record_is_summed_up(folder: Folder) -> None:
    """``inspect --incidents`` tells of the whole run, and a compaction writes what the resumed life remembers."""
    await folder.be_stopped()
    lost = Incident(
        role="rollout", workers=(WorkerId("rollout/0"),), cause="worker", level="worker", attempts=1,
        verdict="restored", detail="killed by signal 9", version=WeightVersion(1), seconds=2.0,
    )  # fmt: skip
    await folder.ledger.append((lost,))
    folder.compact_events = 1
    await folder.live()
    events = await folder.ledger.replay()
    assert not any(isinstance(event, Resumed) for event in events), "it was summed up"
    assert [event for event in events if isinstance(event, Incident)] == [lost]


async def test_the_job_lies_in_the_folder_as_it_was_last_run(folder: Folder) -> None:
    """``conductor resume`` needs nothing but the folder."""
    await folder.be_stopped()
    kept = msgspec.json.decode((folder.run_dir / JOB_FILE).read_bytes())
    assert kept["steps"] == 4
    assert (await folder.live(steps=6)).steps == 6
    kept = msgspec.json.decode((folder.run_dir / JOB_FILE).read_bytes())
    assert kept["steps"] == 6


async def test_failures_of_earlier_lives_are_counted_on(folder: Folder) -> None:
    def failure(lease: RolloutLease) -> ConductorError | None:
        return EngineBusy(engine="e", waiting=1) if lease.prompt.position == 0 and lease.attempt == 0 else None

    await folder.be_stopped(scripted_workloads(100, failure=failure))
    assert (await folder.live()).failures == {"EngineBusy": 1}


async def test_time_is_counted_on_without_that_between_two_lives(folder: Folder) -> None:
    await folder.be_stopped()
    await anyio.sleep(1000.0)
    assert (await folder.live()).seconds == pytest.approx(8.0, abs=1.0)


async def test_prompts_go_on_where_the_source_stood_though_none_was_admitted(folder: Folder) -> None:
    """I51: a run that was stopped while it opened its ports began with other prompts than it was given."""
    advanced = ScriptedPrompts(100)
    await advanced.restore(SourceState(position=3, seed=(await advanced.state()).seed))
    stopped = scripted_workloads(advanced)
    stopped.inference._publish_s = 1000.0
    await folder.be_stopped(stopped)
    assert not any(isinstance(event, Admitted) for event in await folder.ledger.replay())
    await folder.live()
    admitted = [event.prompt.position for event in await folder.ledger.replay() if isinstance(event, Admitted)]
    assert admitted == list(range(3, 11))


async def test_an_evaluation_of_the_checkpoint_itself_is_not_done_again(tmp_path: Path) -> None:
    """Law 1: each version is evaluated once, and told of once."""
    folder = Folder(tmp_path, evaluated=True)
    await folder.be_stopped(at_s=5.5)
    assert await folder.evaluated_versions() == [1, 2]
    result = await folder.live()
    assert await folder.evaluated_versions() == [1, 2, 3, 4]
    assert [record.step for record in result.evaluations] == [1, 2, 3, 4]


async def test_halves_of_checkpoints_are_removed(folder: Folder) -> None:
    """I49, I73: what a kill left aside stayed for ever."""
    await folder.be_stopped()
    there = checkpoints.folder_of(str(folder.run_dir))
    (there / ".step-3.abc").mkdir()
    await folder.live()
    assert not list(there.glob(".step-*"))


async def test_checkpoints_without_a_record_are_not_begun_over(folder: Folder) -> None:
    """I47: the record was lost, and a resume began at 0 over checkpoints of a week."""
    await folder.be_stopped()
    folder.ledger = MemoryLedger()
    with pytest.raises(
        UserError,
        match=exactly("... holds checkpoints, and the ledger no record of their run; begin in another folder"),
    ):
        await folder.live()


async def test_the_checkpoint_of_another_run_is_refused(
    folder: Folder, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """W12: state of another run under the same name was taken for this one's."""
    other = Folder(tmp_path_factory.mktemp("other"))
    await other.be_stopped()
    await folder.be_stopped()
    mine, theirs = (checkpoints.folder_of(str(one.run_dir)) for one in (folder, other))
    shutil.rmtree(mine)
    shutil.copytree(theirs, mine)
    with pytest.raises(
        UserError,
        match=exactly(
            "... belongs to run ..., the record in the same folder to ...; remove it, or put that run's record back"
        ),
    ):
        await folder.live()


def evaluated(step: int) -> Evaluated:
    return Evaluated(record=StepRecord(step=step, metrics={}))


def stepped(step: int) -> Stepped:
    return Stepped(record=StepRecord(step=step, metrics={}), seconds=1.0)


def test_what_was_done_at_the_checkpoint_itself_counts() -> None:
    """Issue C: a resume goes back to behind the step, and to behind its evaluation."""
    back = Resumed(version=WeightVersion(2))
    assert evaluations_of([evaluated(1), evaluated(2), evaluated(3), back]) == [evaluated(1), evaluated(2)]
    assert steps_of([stepped(1), stepped(2), stepped(3), back, stepped(3)]) == [stepped(1), stepped(2), stepped(3)]
