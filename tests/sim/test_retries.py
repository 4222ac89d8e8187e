"""What fails and is tried again: with pauses, within budgets that progress refills, and with nothing half done."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from backends.ledgers.memory import MemoryLedger
from backends.sim.grader import alternating
from backends.sim.trainer import ScriptedTrainer
from conductor.core.lease import State
from conductor.past import rebuild
from conductor.result import RunResult
from protocols.errors import BudgetExhausted, ConductorError, EngineBusy, PayloadLost, Transient, WorkerLost
from protocols.grading import Grade, GradeFault, GradeRequest
from protocols.inference import WeightsManifest
from protocols.ledger import Claimed, Committed, Generating, Readmitted, Unclaimed
from protocols.messages import DispatchId
from protocols.rollouts import RolloutLease
from protocols.training import BatchLease, StageRequest, StepReport
from tests.support.runs import run_config, run_scripted
from tests.support.scripted.workloads import ScriptedWorkloads, scripted_workloads


def gone() -> WorkerLost:
    return WorkerLost(worker="reward/0", cause="it crashed")


def failing(until_s: float, asked: list[float]) -> Callable[[GradeRequest], list[Grade | GradeFault]]:
    """Return a grader that is there from a moment on."""

    def rewards(request: GradeRequest) -> list[Grade | GradeFault]:
        asked.append(anyio.current_time())
        if asked[-1] < until_s:
            raise gone()
        return alternating(request)

    return rewards


async def test_an_outage_of_the_grader_is_waited_for_and_costs_no_rollout() -> None:
    """Fault search, seed 660 (I61): three attempts were spent within a second, and the grader was back after three."""
    asked: list[float] = []
    scripted = scripted_workloads(rewards=failing(45.0, asked))
    result = await run_scripted(run_config(batch_groups=8), scripted)
    assert result.steps == 2
    assert {lease.attempt for lease in scripted.executor.leases} == {0}, "nothing is generated twice"
    assert len([at_s for at_s in asked if at_s < 45.0]) <= 8 * 8


async def test_a_grader_that_stays_away_ends_the_run_with_the_numbers() -> None:
    scripted = scripted_workloads(rewards=failing(1e9, []))
    with pytest.raises(BudgetExhausted, match=r"grading: 4 failures, 3 allowed by retries.*it crashed"):
        await run_scripted(run_config(batch_groups=8, retries=3), scripted)


async def test_a_group_that_no_grader_survives_does_not_wear_out_the_others() -> None:
    """Others are graded meanwhile: so it is the group, which has its own budget."""

    def rewards(request: GradeRequest) -> list[Grade | GradeFault]:
        if request.prompt.position == 3:
            raise gone()
        return alternating(request)

    scripted = scripted_workloads(rewards=rewards)
    with pytest.raises(BudgetExhausted, match=r"group L3: 2 failures, 2 allowed by attempts"):
        await run_scripted(run_config(steps=100, max_age=2, attempts=2), scripted)


async def test_a_group_is_generated_again_after_growing_pauses() -> None:
    began: list[float] = []

    def failure(lease: RolloutLease) -> ConductorError | None:
        if lease.prompt.position != 0:
            return None
        began.append(anyio.current_time())
        return EngineBusy(engine="e", waiting=1) if lease.attempt < 4 else None

    result = await run_scripted(run_config(attempts=5), scripted_workloads(failure=failure))
    assert result.steps == 2
    pauses = [after - before - 1.0 for before, after in pairwise(began)]  # each attempt takes a second
    assert all(0.75 * most <= pause <= most for pause, most in zip(pauses, (0.5, 1.0, 2.0, 4.0), strict=True))


class StumblingTrainer(ScriptedTrainer):
    """Fails at calls of its port, by method and number from 1: before the call is carried out, or after."""

    def __init__(self, payloads: Any, faults: dict[tuple[str, int], str], error: Callable[[], ConductorError]) -> None:
        super().__init__(payloads)
        self._faults = faults
        self._error = error
        self.calls: list[str] = []

    async def train_step(self, batch: BatchLease) -> StepReport:
        """Step."""
        return await self._stumble("train_step", lambda: ScriptedTrainer.train_step(self, batch))

    async def outcome(self, dispatch_id: DispatchId) -> StepReport | None:
        """Tell."""
        return await self._stumble("outcome", lambda: ScriptedTrainer.outcome(self, dispatch_id))

    async def discard(self) -> None:
        """Close the window."""
        await self._stumble("discard", lambda: ScriptedTrainer.discard(self))

    async def stage_weights(self, request: StageRequest) -> WeightsManifest:
        """Stage."""
        return await self._stumble("stage_weights", lambda: ScriptedTrainer.stage_weights(self, request))

    async def _stumble(self, method: str, call: Callable[[], Any]) -> Any:
        self.calls.append(method)
        when = self._faults.get((method, self.calls.count(method)))
        if when == "before":
            await checkpoint()
            raise self._error()
        result = await call()
        if when == "after":
            raise self._error()
        return result


async def run_stumbling(
    faults: dict[tuple[str, int], str], error: Callable[[], ConductorError] = lambda: Transient("no answer")
) -> tuple[RunResult, StumblingTrainer, MemoryLedger]:
    scripted, ledger = scripted_workloads(), MemoryLedger()
    trainer = StumblingTrainer(scripted.payloads, faults, error)
    result = await run_scripted(run_config(steps=3), replace(scripted, trainer=trainer), ledger)
    return result, trainer, ledger


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("method", ["train_step", "stage_weights"])
async def test_a_lost_message_of_the_trainer_is_made_up_for(method: str, when: str) -> None:
    """Fault search: a lost request or reply ended the run; a step happens once whichever was lost."""
    result, trainer, ledger = await run_stumbling({(method, 2): when})
    assert result.steps == 3
    assert [batch.version for batch in trainer.steps] == [0, 1, 2]
    assert not [event for event in await ledger.replay() if isinstance(event, Unclaimed)]
    assert trainer.calls.count("outcome") == (method == "train_step")
    assert trainer.calls.count("discard") == (method == "train_step" and when == "before")


async def test_who_settles_a_step_in_doubt_may_stumble_as_well() -> None:
    faults = {("train_step", 1): "before", ("outcome", 1): "before", ("outcome", 2): "after", ("discard", 1): "after"}
    result, trainer, _ = await run_stumbling(faults)
    assert result.steps == 3
    assert len(trainer.steps) == 3


async def test_a_trainer_that_is_gone_ends_the_run_at_once() -> None:
    """Nobody else knows its parameters: there is nothing to try again."""
    with pytest.raises(WorkerLost):
        await run_stumbling({("train_step", 2): "before"}, error=gone)


async def test_a_trainer_that_fails_for_ever_ends_the_run_with_the_numbers() -> None:
    faults = {("train_step", number): "before" for number in range(1, 100)}
    with pytest.raises(BudgetExhausted, match=r"a train step: 9 failures, 8 allowed by retries"):
        await run_stumbling(faults)


def losing(scripted: ScriptedWorkloads, *positions: int, times: int = 1) -> ScriptedWorkloads:
    """Return workloads whose trainer finds the payloads of some prompts damaged, in so many batches."""
    names = {f"L{position}" for position in positions}
    left = times

    class Losing(ScriptedTrainer):
        async def accumulate(self, batch: BatchLease) -> Any:
            nonlocal left
            owners = [group.payload.owner for group in batch.groups if group.lease_id in names]
            if owners and left:
                left -= 1
                self._window = batch  # some of its gradients are there already
                raise PayloadLost(owner=owners[0], cause="damaged", others=tuple(owners[1:]))
            return await super().accumulate(batch)

    return replace(scripted, trainer=Losing(scripted.payloads))


@pytest.mark.parametrize("max_age", [0, 2])
async def test_a_damaged_payload_costs_its_group_an_attempt_and_no_other(max_age: int) -> None:
    """Fault search, seed 2165: it ended the run. The claim is undone whole and made again when the group is anew."""
    scripted, ledger = losing(scripted_workloads(), 1), MemoryLedger()
    result = await run_scripted(run_config(steps=3, max_age=max_age), scripted, ledger)
    events = await ledger.replay()
    assert result.steps == 3
    assert result.failures == {"PayloadLost": 1}
    first, second = [event for event in events if isinstance(event, Claimed) and "L1" in event.leases]
    assert [event.dispatch_id for event in events if isinstance(event, Unclaimed)] == [first.dispatch_id]
    assert [event.lease_id for event in events if isinstance(event, Readmitted)] == ["L1"]
    assert [lease.attempt for lease in scripted.executor.leases if lease.lease_id == "L1"] == [0, 1]
    assert second.dispatch_id in [event.dispatch_id for event in events if isinstance(event, Committed)]
    assert scripted.trainer.discarded == 1
    if max_age == 0:
        assert second.leases == first.leases, "the batch is as if nothing had been"
    assert rebuild(events).accounts.balanced


async def test_payloads_that_were_lost_together_cost_one_step() -> None:
    """A node that went took the groups of a batch: found one by one, each cost a step and a meeting of all ranks."""
    scripted, ledger = losing(scripted_workloads(), 0, 1), MemoryLedger()
    result = await run_scripted(run_config(steps=3), scripted, ledger)
    events = await ledger.replay()
    assert result.failures == {"PayloadLost": 2}
    assert len([event for event in events if isinstance(event, Unclaimed)]) == 1
    assert {event.lease_id for event in events if isinstance(event, Readmitted)} == {"L0", "L1"}
    assert rebuild(events).accounts.balanced


async def test_payloads_that_were_lost_together_are_made_again_together() -> None:
    """Each waits half a second before it goes out again: one after the other, a batch of 32 waited for 14 s."""

    async def seconds_of(scripted: ScriptedWorkloads) -> float:
        began = anyio.current_time()
        result = await run_scripted(run_config(batch_groups=32), scripted)
        assert result.failures in ({}, {"PayloadLost": 32})
        return anyio.current_time() - began

    undisturbed = await seconds_of(scripted_workloads())
    lost = await seconds_of(losing(scripted_workloads(), *range(32)))
    assert lost - undisturbed < 2.0, "one pause, and the second to write them again"


async def test_the_last_prompts_of_all_are_waited_for_when_one_is_damaged() -> None:
    """Admission had ended with the prompts, and nobody would have sent the group out again."""
    scripted = losing(scripted_workloads(3), 2)
    result = await run_scripted(run_config(steps=100), scripted)
    assert [len(batch.groups) for batch in scripted.trainer.steps] == [2, 1]
    assert result.accounts.committed == 3


async def test_a_payload_that_is_always_damaged_ends_the_run_within_the_budget_of_its_group() -> None:
    scripted, ledger = losing(scripted_workloads(), 1, times=99), MemoryLedger()
    with pytest.raises(BudgetExhausted, match=r"group L1: 3 failures, 3 allowed by attempts.*damaged"):
        await run_scripted(run_config(), scripted, ledger)
    table = rebuild(await ledger.replay())
    assert table.accounts.committed == 0
    assert {lease.state for lease in table} == {State.ABORTED}
    generated = [event for event in await ledger.replay() if isinstance(event, Generating)]
    assert len(generated) == 4, "L0 once, L1 three times"


async def test_a_payload_that_cannot_be_released_ends_no_run_and_goes_at_the_end() -> None:
    """It takes room until then."""
    scripted = scripted_workloads()
    release, refused = scripted.payloads.release, []

    async def stubborn(owner: str) -> None:
        if owner.startswith("policy.1/L0/") and not refused:
            refused.append(owner)
            raise Transient("the store is busy")
        await release(owner)

    scripted.payloads.release = stubborn  # type: ignore[method-assign]
    result = await run_scripted(run_config(), scripted)
    assert result.steps == 2
    assert refused
    assert not scripted.payloads.held


async def test_the_payloads_of_a_step_are_released_at_once() -> None:
    """On a cluster each release is a message there and back: one after the other they were a tenth of a step."""
    scripted = scripted_workloads()
    release, running, most = scripted.payloads.release, 0, 0

    async def slow(owner: str) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await anyio.sleep(1.0)
        running -= 1
        await release(owner)

    scripted.payloads.release = slow  # type: ignore[method-assign]
    await run_scripted(run_config(batch_groups=8), scripted)
    assert most >= 8
    assert not scripted.payloads.held
