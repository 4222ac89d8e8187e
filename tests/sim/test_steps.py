"""One train step: replies that are lost, steps that stop half-way, weights that are released, what is told of it."""

from dataclasses import replace

import anyio
import pytest

from backends.sim.grader import alternating
from backends.sim.trainer import ScriptedTrainer
from conductor.conductor import Conductor
from conductor.result import Accounts, RunResult
from protocols.errors import PortFailed, Transient
from protocols.grading import Grade, GradeFault, GradeRequest
from protocols.tracking import StepRecord
from protocols.training import BatchLease, StepReport
from tests.support.runs import open_backend_over, run_config, run_scripted, workloads_of
from tests.support.scripted.workloads import ScriptedWorkloads, scripted_workloads


class LossyTrainer(ScriptedTrainer):
    """Loses a message of its second step: the ``request`` before the step, or the ``reply`` after it."""

    def __init__(self, scripted: ScriptedWorkloads, *, loses: str) -> None:
        super().__init__(scripted.payloads)
        self._loses = loses
        self._calls = 0

    async def train_step(self, batch: BatchLease) -> StepReport:
        self._calls += 1
        if self._calls != 2:
            return await super().train_step(batch)
        if self._loses == "reply":
            await super().train_step(batch)
        raise Transient(f"the {self._loses} is lost")


async def run_lossy(loses: str) -> tuple[RunResult, LossyTrainer]:
    scripted = scripted_workloads(100)
    trainer = LossyTrainer(scripted, loses=loses)
    return await run_scripted(run_config(steps=3), replace(scripted, trainer=trainer)), trainer


async def test_a_step_whose_reply_is_lost_counts_once() -> None:
    """I42: whoever steps again trains a batch twice; whoever gives up has lost a step."""
    result, trainer = await run_lossy("reply")
    assert result.steps == len(trainer.steps) == 3
    assert result.accounts.committed == result.accounts.admitted == 6


async def test_a_step_that_did_not_happen_is_taken_again() -> None:
    result, trainer = await run_lossy("request")
    assert result.steps == len(trainer.steps) == 3
    assert result.accounts.committed == result.accounts.admitted == 6


class HalfTrainer(ScriptedTrainer):
    """Changes some of its parameters, and no more; notes what was aborted when it was told to discard them."""

    def __init__(self, scripted: ScriptedWorkloads) -> None:
        super().__init__(scripted.payloads)
        self._executor = scripted.executor
        self.aborted_before: list[list[str]] = []

    async def train_step(self, batch: BatchLease) -> StepReport:
        await self.accumulate(batch)
        return StepReport(
            dispatch_id=batch.dispatch_id, version=self.version, mutated="partial", consumed=(), metrics={}
        )

    async def discard(self) -> None:
        self.aborted_before.append(list(self._executor.aborted))
        await super().discard()


async def test_half_a_step_is_discarded_at_once_and_ends_the_run() -> None:
    """DESIGN.md: a partial step must be discarded before anything else happens."""
    scripted = scripted_workloads(100)
    trainer = HalfTrainer(scripted)
    with pytest.raises(PortFailed, match="D0 changed some of the parameters only"):
        await run_scripted(run_config(), replace(scripted, trainer=trainer))
    assert trainer.aborted_before[0] == []


@pytest.mark.parametrize("publish_s", [0.0, 2.5])
async def test_every_version_is_released_as_soon_as_it_serves_nobody(publish_s: float) -> None:
    """I73: whether it was served or overtaken, no staged weights stay until the end of the run."""
    held: list[int] = []
    scripted = scripted_workloads(100, publish_s=publish_s)
    stage = scripted.trainer.stage_weights

    async def counted(request):
        held.append(sum(owner.startswith("weights/") for owner, _ in scripted.payloads.held))
        return await stage(request)

    scripted.trainer.stage_weights = counted
    await run_scripted(run_config(steps=12, max_age=4), scripted)
    assert max(held) <= 3, "the one served, the one being published, the newest one waiting"


class Watcher:
    """Remembers the steps that it is told of."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, int]] = []

    def phase(self, name: str) -> None:
        """Do nothing."""

    def stepped(self, record: StepRecord, accounts: Accounts) -> None:
        """Take it down."""
        self.steps.append((record.step, accounts.committed))


async def test_whoever_watches_is_told_of_each_step() -> None:
    scripted, watcher = scripted_workloads(100), Watcher()
    async with open_backend_over(scripted) as backend:
        await Conductor.run(run_config(steps=3), backend=backend, workloads=workloads_of(scripted), observer=watcher)
    assert watcher.steps == [(1, 2), (2, 4), (3, 6)]


def one_fault(request: GradeRequest) -> list[Grade | GradeFault]:
    grades = alternating(request)
    if request.prompt.position == 0:
        grades[0] = GradeFault(kind="raised", detail="ZeroDivisionError")
    return grades


async def test_masked_samples_are_not_counted_as_trained() -> None:
    """I61: the throughput of a run whose rewards fail looked as good as that of one that learns."""
    scripted = scripted_workloads(100, rewards=one_fault)
    result = await run_scripted(run_config(group_size=4), scripted)
    assert [record.metrics["samples/trained"] for record in result.metrics] == [7.0, 8.0]


async def test_the_time_of_a_step_is_made_of_its_parts() -> None:
    """A step that waits a second for its batch and trains for two takes three."""
    result = await run_scripted(run_config(steps=3), scripted_workloads(100, step_s=2.0))
    for record in result.metrics:
        assert record.metrics["time/wait_s"] == pytest.approx(1.0)
        assert record.metrics["time/train_s"] == pytest.approx(2.0)
        assert record.metrics["time/step_s"] == pytest.approx(3.0)
    assert anyio.current_time() == pytest.approx(9.0)
