"""Reward: the ids of finished groups in, the ids of graded groups worth training out.

Each group is a task of its own; it waits for the grader, at most ``deadlines.reward``. A sample without a
reward is masked and counted. Where the algorithm compares the samples of a group, one with fewer than two rewards is
dropped, and one whose rewards are all equal filtered, up to the ceiling.
"""

import math
from typing import Literal

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from conductor.abort import drop, prefix_of, retry
from conductor.algorithms.table import ALGORITHMS
from conductor.context import RunContext
from conductor.core.lease import RUNNING, Lease
from protocols.errors import BudgetExhausted, InvariantError, Transient
from protocols.grading import Grade, GradeFault, GradeReport, GradeRequest
from protocols.ledger import Filtered, Graded
from protocols.messages import LeaseId, lease_number
from protocols.rollouts import GroupReceipt

Verdict = Literal["train", "filter", "filter_for_good", "wait"]


async def run(
    ctx: RunContext, finished: MemoryObjectReceiveStream[LeaseId], graded: MemoryObjectSendStream[LeaseId]
) -> None:
    """Grade every group that comes."""
    async with anyio.create_task_group() as group:
        async for lease_id in finished:
            ctx.start(group, f"reward {lease_id}", _grade, ctx, lease_id, graded)


async def _grade(ctx: RunContext, lease_id: LeaseId, graded: MemoryObjectSendStream[LeaseId]) -> None:
    lease = ctx.table[lease_id]
    receipt = lease.finished_receipt
    try:
        grades = await _grades(ctx, lease, receipt)
    except Transient as exc:
        await retry(ctx, lease, exc)
        return
    ctx.window.graded(receipt, grades)
    rewards = [grade.reward for grade in grades if isinstance(grade, Grade)]
    if len(rewards) < (2 if ALGORITHMS[ctx.cfg.algorithm].compares else 1):
        faults = [grade for grade in grades if isinstance(grade, GradeFault)]
        await drop(ctx, lease, "too_few_rewards", f"{faults[0].kind}: {faults[0].detail}")
        return
    event = Graded(lease_id=lease_id, receipt=receipt, grades=grades)
    verdict = _judge(ctx, lease, rewards)
    while verdict == "wait":
        await ctx.changed.wait()
        verdict = _judge(ctx, lease, rewards)
    if verdict == "train":
        await ctx.record(event)
        await graded.send(lease_id)
        return
    ctx.window.filtered += 1
    prefix = prefix_of(ctx, lease)
    await ctx.record(event, Filtered(lease_id=lease_id, reason="equal_rewards", replaced=verdict == "filter"))
    await ctx.ports.backend.payloads.release(prefix)


async def _grades(ctx: RunContext, lease: Lease, receipt: GroupReceipt) -> tuple[Grade | GradeFault, ...]:
    """Ask for the grades of the samples that have tokens, and put all of them in order."""
    asked = tuple(index for index, sample in enumerate(receipt.samples) if sample.tokens)
    empty = GradeFault(kind="empty", detail="the completion has no tokens")
    grades: list[Grade | GradeFault] = [empty] * len(receipt.samples)
    if asked:
        request = GradeRequest(
            lease_id=lease.lease_id,
            attempt=lease.attempt,
            prompt=lease.prompt,
            payload=receipt.payload,
            samples=asked,
        )
        report = await ctx.ports.grader.grade(request)
        _check(request, report)
        for index, grade in zip(asked, report.grades, strict=True):
            grades[index] = grade
            if isinstance(grade, GradeFault):
                ctx.log.warning(
                    "reward.failed", lease_id=lease.lease_id, sample=index, kind=grade.kind, detail=grade.detail
                )
    return tuple(grades)


def _check(request: GradeRequest, report: GradeReport) -> None:
    expected = (request.lease_id, request.attempt, len(request.samples))
    if (report.lease_id, report.attempt, len(report.grades)) != expected:
        raise InvariantError(
            f"grades of {report.lease_id} attempt {report.attempt} ({len(report.grades)} of them) "
            f"for {request.lease_id} attempt {request.attempt} ({len(request.samples)} asked for)"
        )
    if not all(math.isfinite(grade.reward) for grade in report.grades if isinstance(grade, Grade)):
        raise InvariantError(f"a reward of {report.lease_id} is not finite: {report.grades}")


def _judge(ctx: RunContext, lease: Lease, rewards: list[float]) -> Verdict:
    """Decide what becomes of a group; one whose rewards differ teaches something.

    At ``max_age`` 0 it is the first such groups in the order of admission that are filtered, whatever was graded
    first: else time would decide what is trained.
    """
    policy, filtered = ctx.cfg.filter, len(ctx.table.tally.filtered_for_batch)
    teaches = not ALGORITHMS[ctx.cfg.algorithm].compares or min(rewards) != max(rewards)
    if teaches or policy.equal_rewards == "keep":
        return "train"
    if ctx.cfg.max_age == 0 and not ctx.cfg.extra_groups:
        filtered, undecided = _before(ctx, lease)
        if filtered < ctx.cfg.filter_ceiling <= filtered + undecided:
            return "wait"
    if filtered < ctx.cfg.filter_ceiling:
        return "filter"
    if policy.on_ceiling == "keep":
        return "train"
    if policy.on_ceiling == "short":
        return "filter_for_good"
    raise BudgetExhausted(
        what="groups whose samples all earned the same, in one step",
        spent=filtered + 1,
        allowed=ctx.cfg.filter_ceiling,
        field="filter.ceiling",
        last=f"all {len(rewards)} rewards are {rewards[0]:g}",
    )


def _before(ctx: RunContext, lease: Lease) -> tuple[int, int]:
    """Return how many groups admitted before this one are filtered for its batch, and of how many nobody knows yet."""
    number = lease_number(lease.lease_id)
    filtered = sum(lease_number(lease_id) < number for lease_id in ctx.table.tally.filtered_for_batch)
    return filtered, sum(other.state in RUNNING and lease_number(other.lease_id) < number for other in ctx.table)
