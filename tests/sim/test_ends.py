"""How runs end whose last groups come to nothing, and what becomes of groups beyond a batch that is full."""

import anyio
import msgspec
import pytest

from backends.ledgers.memory import MemoryLedger
from conductor.config import FilterConfig
from protocols.errors import BudgetExhausted, ConductorError, EngineBusy, InvariantError, PromptTooLong
from protocols.grading import Grade, GradeReport, GradeRequest
from protocols.inference import AbortReport, Segment
from protocols.ledger import Claimed, Committed, Dropped, Generating, LedgerEvent, Readmitted
from protocols.messages import WeightVersion
from protocols.rollouts import GroupReceipt, RolloutLease
from tests.support.runs import run_config, run_scripted
from tests.support.scripted.workloads import scripted_workloads


@pytest.mark.parametrize(("max_age", "ends_at_s"), [(0, 52.0), (2, 50.0)])
async def test_a_last_group_that_comes_to_nothing_lets_the_run_end(max_age: int, ends_at_s: float) -> None:
    """I04, I56: the trainer waited for a batch that nobody could fill any more."""

    def failure(lease: RolloutLease) -> ConductorError | None:
        return PromptTooLong(tokens=99, context=32) if lease.prompt.position == 2 else None

    scripted = scripted_workloads(
        3, duration_s=lambda lease: 50.0 if lease.prompt.position == 2 else 1.0, failure=failure
    )
    result = await run_scripted(run_config(steps=5, max_age=max_age), scripted)
    assert (result.steps, result.dropped) == (1, {"prompt_too_long": 1})
    assert anyio.current_time() == pytest.approx(ends_at_s)


async def test_groups_beyond_a_full_batch_are_given_up_before_it_is_trained() -> None:
    """ORACLES.md, over-sampling: what nobody will train holds neither memory nor a place while the step runs."""
    scripted, ledger = scripted_workloads(100, step_s=50.0), MemoryLedger()
    await run_scripted(run_config(steps=2, oversample=2.0), scripted, ledger)
    events = await ledger.replay()
    surplus = [at for at, event in enumerate(events) if isinstance(event, Dropped) and event.reason == "surplus"]
    first, second = (at for at, event in enumerate(events) if isinstance(event, Committed))
    assert sum(at < first for at in surplus) == 2
    assert sum(first < at < second for at in surplus) == 2


async def test_what_is_still_graded_when_its_batch_is_full_is_given_up_afterwards() -> None:
    """I32: it would be trained one version late, at a bound of 0."""
    scripted = scripted_workloads(100)
    grade = scripted.grader.grade

    async def slowly(request: GradeRequest) -> GradeReport:
        if request.prompt.position == 1:
            await anyio.sleep(1.5)
        return await grade(request)

    scripted.grader.grade = slowly
    result = await run_scripted(run_config(steps=3, oversample=1.5), scripted)
    trained = [group.lease_id for batch in scripted.trainer.steps for group in batch.groups]
    assert trained[:2] == ["L0", "L2"]
    assert "L1" not in trained
    assert result.dropped["surplus"] == 3
    assert [record.metrics["age/max"] for record in result.metrics] == [0.0] * 3


class MeetingLedger(MemoryLedger):
    """Writes down that a group is admitted again for as long as the claim of its batch takes, and a little longer."""

    def __init__(self) -> None:
        super().__init__()
        self.readmitting, self._claimed = anyio.Event(), anyio.Event()

    async def append(self, events: tuple[LedgerEvent, ...]) -> None:
        await super().append(events)
        if any(isinstance(event, Claimed) for event in events):
            self._claimed.set()
        if any(isinstance(event, Readmitted) for event in events):
            self.readmitting.set()
            await self._claimed.wait()
            await anyio.sleep(0.1)


async def test_a_group_that_is_begun_again_when_its_batch_is_full_is_given_up() -> None:
    """I09: it was written down as admitted, nobody played it, and the run waited for it."""

    def failure(lease: RolloutLease) -> ConductorError | None:
        again = lease.lease_id == "L2" and lease.attempt == 0
        return EngineBusy(engine="e", waiting=1) if again else None

    scripted, ledger = scripted_workloads(100, failure=failure), MeetingLedger()
    grade = scripted.grader.grade

    async def grade_meanwhile(request: GradeRequest) -> GradeReport:
        await ledger.readmitting.wait()
        return await grade(request)

    scripted.grader.grade = grade_meanwhile
    result = await run_scripted(run_config(steps=1, oversample=1.5), scripted, ledger)
    assert result.dropped == {"surplus": 1}
    begun = [event for event in await ledger.replay() if isinstance(event, Generating) and event.lease_id == "L2"]
    assert [event.attempt for event in begun] == [0]


async def test_a_group_that_is_faster_than_its_end_is_given_up_all_the_same() -> None:
    """I44: finished between the decision to end it and the abort that does, it was nobody's."""
    scripted = scripted_workloads(100, duration_s=lambda lease: 1.5 if lease.lease_id == "L2" else 1.0)
    abort = scripted.executor.abort

    async def late(prefix: str) -> AbortReport:
        await anyio.sleep(1.0)
        return await abort(prefix)

    scripted.executor.abort = late
    result = await run_scripted(run_config(steps=1, oversample=1.5), scripted)
    assert result.dropped == {"surplus": 1}
    assert not scripted.payloads.held


async def test_a_token_of_weights_that_do_not_exist_yet_ends_the_run() -> None:
    """Law 3: its age would count as negative, and hide what is old."""
    scripted = scripted_workloads(100)
    generate = scripted.executor.generate

    async def ahead(lease: RolloutLease) -> GroupReceipt:
        receipt = await generate(lease)
        late = Segment(version=WeightVersion(1), count=4)
        samples = tuple(msgspec.structs.replace(sample, segments=(late,)) for sample in receipt.samples)
        return msgspec.structs.replace(receipt, samples=samples)

    scripted.executor.generate = ahead
    with pytest.raises(InvariantError, match="v0 is the newest"):
        await run_scripted(run_config(), scripted)


async def test_the_verdict_on_equal_rewards_has_the_numbers() -> None:
    """I64: how many groups taught nothing, and how many may."""
    scripted = scripted_workloads(100, rewards=lambda request: [Grade(reward=1.0) for _ in request.samples])
    with pytest.raises(BudgetExhausted, match=r"filter\.ceiling") as caught:
        await run_scripted(run_config(filter=FilterConfig(ceiling=3, on_ceiling="fail")), scripted)
    assert (caught.value.spent, caught.value.allowed) == (4, 3)
