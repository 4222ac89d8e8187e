"""The six stages over scripted workloads, on virtual time: what is trained, in which order, how old."""

import asyncio
import math

import pytest

from backends.ledgers.memory import MemoryLedger
from backends.sim.grader import alternating
from backends.sim.prompts import ScriptedPrompts
from conductor.config import Deadlines, FilterConfig
from conductor.core.leases import LeaseTable
from conductor.result import RunResult
from protocols.errors import (
    Aborted,
    BadPrompt,
    BudgetExhausted,
    ConductorError,
    EngineBusy,
    ForeignCancellation,
    PromptTooLong,
    Stalled,
    Transient,
)
from protocols.grading import Grade, GradeFault, GradeRequest
from protocols.ledger import Readmitted
from protocols.rollouts import RolloutLease
from tests.support.runs import run_config, run_scripted
from tests.support.scripted.workloads import ScriptedWorkloads, scripted_workloads


def batch_sizes(scripted: ScriptedWorkloads) -> list[int]:
    return [len(batch.groups) for batch in scripted.trainer.steps]


def trained(scripted: ScriptedWorkloads) -> list[list[str]]:
    return [[group.lease_id for group in batch.groups] for batch in scripted.trainer.steps]


def uneven(lease: RolloutLease) -> float:
    """Let groups finish out of order: a long tail every fifth."""
    return 1.0 + 0.1 * (lease.prompt.position % 3) + (5.0 if lease.prompt.position % 5 == 4 else 0.0)


def metric(result: RunResult, name: str) -> list[float]:
    return [record.metrics[name] for record in result.metrics]


@pytest.mark.parametrize("max_age", [0, 1, 3])
@pytest.mark.parametrize(
    ("prompts", "epochs", "remainder", "sizes"),
    [
        (30, 1, "train", [16, 14]),
        (20, 1, "train", [16, 4]),
        (10, 1, "train", [10]),
        (32, 1, "train", [16, 16]),
        (30, 2, "train", [16, 14, 16, 14]),
        (30, 2, "carry", [16, 16, 16, 12]),
        (30, 2, "drop", [16, 16]),
    ],
)
async def test_exact_epoch_arithmetic(
    prompts: int, epochs: int, remainder: str, sizes: list[int], max_age: int
) -> None:
    """I55, I56: an infinite epoch, a missed last batch, a remainder trimmed to nothing."""
    scripted = scripted_workloads(ScriptedPrompts(prompts, epochs=epochs), duration_s=uneven)
    cfg = run_config(steps=100, batch_groups=16, max_age=max_age, remainder=remainder)
    result = await run_scripted(cfg, scripted)
    assert batch_sizes(scripted) == sizes
    assert result.accounts.admitted == prompts * epochs
    assert result.accounts.dropped == prompts * epochs - sum(sizes)
    assert result.accounts.open == 0


@pytest.mark.parametrize("remainder", ["train", "drop"])
async def test_no_batch_mixes_two_epochs(remainder: str) -> None:
    """I56: with a bound of 2 the pipeline runs ahead, but not over the end of an epoch."""
    scripted = scripted_workloads(ScriptedPrompts(10, epochs=3), duration_s=uneven)
    await run_scripted(run_config(steps=100, batch_groups=4, max_age=2, remainder=remainder), scripted)
    for batch in scripted.trainer.steps:
        assert len({int(group.lease_id[1:]) // 10 for group in batch.groups}) == 1


async def test_full_batches_that_wait_for_the_trainer_are_no_remainder() -> None:
    """I36: while a long step ran, the end of an epoch dropped whole batches together with the remainder."""
    scripted = scripted_workloads(ScriptedPrompts(10, epochs=3), step_s=50.0)
    result = await run_scripted(run_config(steps=100, batch_groups=4, max_age=3, remainder="drop"), scripted)
    assert batch_sizes(scripted) == [4] * 6
    assert result.dropped == {"remainder": 6}


async def test_the_last_batches_are_trained_when_the_remainder_is_dropped() -> None:
    """I56: the run wanted no more groups, so those that waited for the trainer were a remainder."""
    scripted = scripted_workloads(100, step_s=50.0)
    result = await run_scripted(run_config(steps=4, max_age=3, remainder="drop"), scripted)
    assert batch_sizes(scripted) == [2] * 4
    assert result.dropped == {}


async def test_max_age_zero_is_a_plain_synchronous_loop() -> None:
    """I32, law 4: batches of prompts in order, every token made by the weights that are trained."""
    scripted = scripted_workloads(40, duration_s=uneven)
    result = await run_scripted(run_config(steps=10, batch_groups=4), scripted)
    assert trained(scripted) == [[f"L{4 * step + i}" for i in range(4)] for step in range(10)]
    assert metric(result, "age/max") == [0.0] * 10
    assert [batch.version for batch in scripted.trainer.steps] == list(range(10))


async def test_a_short_batch_lets_nothing_run_ahead_at_max_age_zero() -> None:
    """I32: after 14 of 16, two groups of the next epoch would be one version old."""
    scripted = scripted_workloads(ScriptedPrompts(30, epochs=3), duration_s=uneven)
    result = await run_scripted(run_config(steps=6, batch_groups=16), scripted)
    assert metric(result, "age/max") == [0.0] * 6


async def test_generation_and_training_overlap_when_age_is_allowed() -> None:
    """DESIGN.md, one knob: with equal times one step off takes about half of the synchronous time."""
    seconds = {}
    for max_age in (0, 1):
        scripted = scripted_workloads(200, step_s=1.0)
        result = await run_scripted(run_config(steps=20, batch_groups=4, max_age=max_age), scripted)
        seconds[max_age] = result.seconds
        assert max(metric(result, "age/max")) <= max_age
    assert seconds[0] == pytest.approx(40.0)
    assert seconds[1] == pytest.approx(21.0)


async def test_work_in_flight_is_bounded_by_slots() -> None:
    """I73: never more groups in flight than slots, however much age is allowed."""
    running: list[int] = []
    scripted = scripted_workloads(200)
    executor = scripted.executor

    def watch(lease: RolloutLease) -> float:
        running.append(len({request.split("/")[1] for request in executor.live}))
        return 1.0 + lease.prompt.position % 3

    watched = scripted_workloads(200, duration_s=watch)
    executor = watched.executor
    await run_scripted(run_config(steps=10, batch_groups=4, max_age=5, slots=3), watched)
    assert max(running) == 3


async def test_ready_groups_beyond_a_batch_are_kept() -> None:
    """I36, slime PR#2238: the surplus of a step was dropped."""
    scripted = scripted_workloads(24, step_s=50.0)
    result = await run_scripted(run_config(steps=6, batch_groups=4, max_age=5), scripted)
    assert sorted(int(lease_id[1:]) for batch in trained(scripted) for lease_id in batch) == list(range(24))
    assert result.accounts.committed == result.accounts.admitted == 24


def equal_every_third(request: GradeRequest) -> list[Grade | GradeFault]:
    if request.prompt.position % 3 == 0:
        return [Grade(reward=1.0) for _ in request.samples]
    return alternating(request)


async def test_equal_rewards_are_filtered_and_refilled_exactly() -> None:
    """I64: dynamic sampling trained on a short batch."""
    scripted = scripted_workloads(100, rewards=equal_every_third, duration_s=uneven)
    result = await run_scripted(run_config(steps=5, batch_groups=4), scripted)
    assert batch_sizes(scripted) == [4] * 5
    assert result.accounts.filtered == result.accounts.admitted - 20 > 0
    assert sum(metric(result, "groups/filtered")) == result.accounts.filtered
    assert metric(result, "age/max") == [0.0] * 5


def all_equal(request: GradeRequest) -> list[Grade | GradeFault]:
    return [Grade(reward=1.0) for _ in request.samples]


async def test_past_the_ceiling_equal_groups_are_trained_as_they_are() -> None:
    """I64: most groups are filtered; the ceiling and the policy are named, and the run ends."""
    scripted = scripted_workloads(100, rewards=all_equal)
    cfg = run_config(steps=3, batch_groups=4, filter=FilterConfig(ceiling=2, on_ceiling="keep"))
    result = await run_scripted(cfg, scripted)
    assert batch_sizes(scripted) == [4, 4, 4]
    assert metric(result, "groups/filtered") == [2.0, 2.0, 2.0]
    assert {row.advantage for batch in scripted.trainer.steps for group in batch.groups for row in group.samples} == {0}


@pytest.mark.parametrize("slow", range(4))
async def test_past_the_ceiling_time_does_not_decide_which_groups_are_filtered(slow: int) -> None:
    """Law 4, found by the kill drill: the group that was graded first was filtered, another one each time."""
    scripted = scripted_workloads(
        100, rewards=equal_every_other, duration_s=lambda lease: 9.0 if lease.prompt.position % 4 == slow else 1.0
    )
    cfg = run_config(steps=3, batch_groups=4, filter=FilterConfig(ceiling=1, on_ceiling="keep"))
    await run_scripted(cfg, scripted)
    assert trained(scripted) == [["L0", "L2", "L3", "L4"], ["L6", "L7", "L8", "L9"], ["L10", "L12", "L13", "L14"]]


async def test_past_the_ceiling_a_short_batch_is_trained() -> None:
    """The policy "short": the step has what it has, and the next one is whole and on policy again."""
    scripted = scripted_workloads(100, rewards=equal_every_third)
    cfg = run_config(steps=4, batch_groups=4, filter=FilterConfig(ceiling=0, on_ceiling="short"))
    result = await run_scripted(cfg, scripted)
    assert batch_sizes(scripted) == [2, 3, 3, 2]
    assert result.accounts.admitted == 16
    assert metric(result, "age/max") == [0.0] * 4


def equal_every_other(request: GradeRequest) -> list[Grade | GradeFault]:
    return all_equal(request) if request.prompt.position % 2 else alternating(request)


@pytest.mark.parametrize("max_age", [1, 3])
async def test_a_group_filtered_while_a_step_runs_makes_the_next_batch_short(max_age: int) -> None:
    """Law 1: it was forgotten when the step ended, and the next batch waited for a group that never came."""
    scripted = scripted_workloads(1000, rewards=equal_every_other, step_s=3.0)
    short = FilterConfig(ceiling=0, on_ceiling="short")
    result = await run_scripted(run_config(steps=20, batch_groups=8, slots=4, max_age=max_age, filter=short), scripted)
    assert len(batch_sizes(scripted)) == 20
    assert result.accounts.admitted == 160
    assert result.accounts.filtered == 80


@pytest.mark.parametrize("policy", ["fail", "short"])
async def test_a_step_that_nothing_is_left_for_ends_the_run(policy: str) -> None:
    """I64: it ends with the setting that allows it, not with a batch of nothing."""
    scripted = scripted_workloads(100, rewards=all_equal)
    cfg = run_config(batch_groups=4, filter=FilterConfig(ceiling=3, on_ceiling=policy))  # type: ignore[arg-type]
    with pytest.raises(BudgetExhausted, match=r"filter\.ceiling"):
        await run_scripted(cfg, scripted)


async def test_bad_data_is_dropped_counted_and_refilled() -> None:
    """I02: one bad rollout killed the step. A prompt that does not fit costs itself only."""

    def failure(lease: RolloutLease) -> ConductorError | None:
        return PromptTooLong(tokens=99, context=32) if lease.prompt.position in {1, 6} else None

    scripted = scripted_workloads(ScriptedPrompts(100, unreadable={3}), failure=failure)
    result = await run_scripted(run_config(steps=3, batch_groups=4), scripted)
    assert batch_sizes(scripted) == [4, 4, 4]
    assert result.dropped == {"prompt_too_long": 2}
    assert result.failures == {BadPrompt.__name__: 1}
    assert result.accounts.dropped == 2


async def test_too_much_bad_data_ends_the_run_with_the_numbers() -> None:
    """I07: a persistent error was logged for ever."""
    scripted = scripted_workloads(100, failure=lambda _: PromptTooLong(tokens=99, context=32))
    with pytest.raises(BudgetExhausted, match="max_dropped") as caught:
        await run_scripted(run_config(batch_groups=4), scripted)
    assert caught.value.exit_code == 3
    assert "99 tokens" in caught.value.last


async def test_a_few_prompts_that_are_all_bad_do_not_count_as_a_finished_run() -> None:
    """A run that trained nothing must not end as a success."""
    scripted = scripted_workloads(3, failure=lambda _: PromptTooLong(tokens=99, context=32))
    with pytest.raises(Stalled, match="no step was trained out of 3 groups"):
        await run_scripted(run_config(batch_groups=2), scripted)


async def test_unreadable_prompts_in_a_row_end_the_run() -> None:
    """I07, for the source itself."""
    scripted = scripted_workloads(ScriptedPrompts(1000, unreadable=range(1000)))
    with pytest.raises(BudgetExhausted, match="unreadable prompts"):
        await run_scripted(run_config(), scripted)


@pytest.mark.parametrize("error", [EngineBusy(engine="e", waiting=9), Aborted(prefix="policy.1/L1/0/")])
async def test_a_transient_failure_is_aborted_and_tried_again(error: Transient) -> None:
    """I12, I42: the group is requeued under a new attempt, and counted once."""

    def failure(lease: RolloutLease) -> ConductorError | None:
        return error if lease.attempt == 0 and lease.prompt.position == 1 else None

    ledger = MemoryLedger()
    scripted = scripted_workloads(100, failure=failure)
    result = await run_scripted(run_config(batch_groups=4), scripted, ledger)
    assert trained(scripted) == [["L0", "L1", "L2", "L3"], ["L4", "L5", "L6", "L7"]]
    assert "policy.1/L1/0/" in scripted.executor.aborted
    assert Readmitted(lease_id="L1", attempt=1) in await ledger.replay()  # type: ignore[arg-type]
    assert result.accounts.admitted == 8
    attempts = [(lease.lease_id, lease.attempt) for lease in scripted.executor.leases]
    assert len(attempts) == len(set(attempts))


async def test_attempts_are_counted() -> None:
    """I07: a group that always fails ends the run, and says which and why."""
    scripted = scripted_workloads(100, failure=lambda _: EngineBusy(engine="e", waiting=9))
    with pytest.raises(BudgetExhausted, match=r"group L\d: 3 failures, 3 allowed by attempts"):
        await run_scripted(run_config(), scripted)


async def test_a_hanging_group_is_cut_at_its_deadline_and_tried_again() -> None:
    """I17, miles PR#1012: one hung agent cost 7.5 hours."""

    def duration(lease: RolloutLease) -> float:
        return math.inf if lease.prompt.position == 0 and lease.attempt == 0 else 1.0

    scripted = scripted_workloads(100, duration_s=duration)
    result = await run_scripted(run_config(deadlines=Deadlines(group=30.0)), scripted)
    assert trained(scripted)[0] == ["L0", "L1"]
    assert result.failures == {"DeadlineExceeded": 1}
    assert 31.0 <= result.seconds <= 40.0


def faulty(request: GradeRequest) -> list[Grade | GradeFault]:
    grades = alternating(request)
    if request.prompt.position == 0:
        grades[1] = GradeFault(kind="raised", detail="ZeroDivisionError")
    if request.prompt.position == 1:
        grades[1:] = [GradeFault(kind="timed_out", detail="10 s")] * (len(grades) - 1)
    return grades


async def test_a_failed_reward_masks_its_sample_and_keeps_the_group() -> None:
    """I61: a None reward became a NaN advantage; here the sample weighs nothing and the others are graded."""
    scripted = scripted_workloads(100, rewards=faulty)
    result = await run_scripted(run_config(group_size=4), scripted)
    weights = {group.lease_id: [row.weight for row in group.samples] for group in scripted.trainer.steps[0].groups}
    assert weights == {"L0": [1.0, 0.0, 1.0, 1.0], "L2": [1.0] * 4}
    assert result.dropped == {"too_few_rewards": 1}
    assert result.failures == {"reward_raised": 1, "reward_timed_out": 3}
    advantages = [row.advantage for row in scripted.trainer.steps[0].groups[0].samples]
    assert math.fsum(advantages) == pytest.approx(0.0)
    assert advantages[1] == 0.0


async def test_empty_completions_are_never_graded() -> None:
    """Issue A: empty completions weigh nothing and are counted."""
    scripted = scripted_workloads(100, tokens=0)
    with pytest.raises(BudgetExhausted, match="too_few_rewards"):
        await run_scripted(run_config(batch_groups=4), scripted)
    assert scripted.grader.requests == []


async def test_nothing_is_left_behind() -> None:
    """Law 5: no live request, no payload, whatever was filtered and dropped on the way."""
    scripted = scripted_workloads(100, rewards=equal_every_third)
    await run_scripted(run_config(steps=4, batch_groups=4, max_age=2), scripted)
    assert scripted.executor.live == frozenset()
    assert await scripted.payloads.owners() == frozenset()
    attempts = {lease.prefix for lease in scripted.executor.leases}
    assert attempts <= set(scripted.payloads.released), "a payload was kept until the run ended"


async def test_the_ledger_alone_proves_the_books() -> None:
    """Law 1: a replay of the record gives the same accounts."""
    ledger = MemoryLedger()
    scripted = scripted_workloads(100, rewards=equal_every_third, duration_s=uneven)
    result = await run_scripted(run_config(steps=4, batch_groups=4, max_age=2), scripted, ledger)
    table = LeaseTable()
    for event in await ledger.replay():
        table.apply(event)
    assert table.accounts == result.accounts


async def test_a_leaked_cancellation_of_an_executor_is_an_error_of_its_own() -> None:
    """I18, miles PR#3319: a foreign CancelledError killed the producer and the run ended as if finished."""

    def failure(lease: RolloutLease) -> ConductorError | None:
        raise asyncio.CancelledError("leaked")

    scripted = scripted_workloads(100, failure=failure)
    with pytest.raises(ForeignCancellation, match="rollout L"):
        await run_scripted(run_config(), scripted)


async def test_weights_that_nobody_confirms_end_the_run() -> None:
    """I22: a failed update must neither hang nor pass silently."""
    scripted = scripted_workloads(100)
    scripted.inference._confirms = lambda _, version: version < 1
    with pytest.raises(Stalled, match="no member confirmed version 1"):
        await run_scripted(run_config(), scripted)


async def test_an_endless_source_that_never_fills_a_batch_ends_the_run() -> None:
    """I14: five prompts an epoch, two of them bad, a batch of four, and the rest of each epoch dropped."""

    def failure(lease: RolloutLease) -> ConductorError | None:
        return PromptTooLong(tokens=99, context=32) if lease.prompt.position % 5 < 2 else None

    scripted = scripted_workloads(ScriptedPrompts(5, epochs=None), failure=failure)
    with pytest.raises(Stalled, match="epoch 0 trained nothing"):
        await run_scripted(run_config(batch_groups=4, remainder="drop"), scripted)


async def test_a_slow_publish_does_not_hold_up_the_trainer() -> None:
    """DESIGN.md, publishing: the newest wins, versions that were overtaken are skipped."""
    scripted = scripted_workloads(200, step_s=1.0, publish_s=10.0)
    result = await run_scripted(run_config(steps=10, batch_groups=4, max_age=8), scripted)
    published = [manifest.version for manifest in scripted.inference.published]
    assert published[0] == 0
    assert published[-1] == 10
    assert len(published) < 6
    assert sum(metric(result, "time/train_s")) == pytest.approx(10.0)
    assert await scripted.payloads.owners() == frozenset()


async def test_short_batches_at_an_age_wait_for_the_groups_that_still_come() -> None:
    """I64: a batch's worth of equal groups came first, and good ones were still being generated."""

    def rewards(request: GradeRequest) -> list[Grade | GradeFault]:
        return all_equal(request) if request.prompt.position < 4 else alternating(request)

    scripted = scripted_workloads(100, rewards=rewards, duration_s=lambda lease: 1.0 + lease.prompt.position)
    cfg = run_config(steps=2, batch_groups=4, max_age=1, filter=FilterConfig(ceiling=0, on_ceiling="short"))
    result = await run_scripted(cfg, scripted)
    assert result.steps == 2
    assert batch_sizes(scripted)[0] == 1
