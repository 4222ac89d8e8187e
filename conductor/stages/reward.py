"""Reward: the ids of finished groups in, the grades of groups worth training out.

Each group is a task of its own; it waits for the grader, at most ``deadlines.reward``. A sample without a
reward is masked and counted. Where the algorithm compares the samples of a group, one with fewer than two rewards is
dropped, and one whose rewards are all equal filtered, up to the ceiling.
"""

from typing import Literal

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from conductor import spool
from conductor.abort import drop, prefix_of, retry
from conductor.algorithms.table import ALGORITHMS
from conductor.context import RunContext
from conductor.core.lease import RUNNING, Lease
from conductor.grading import grades_of
from conductor.patience import release
from conductor.streams import at_hand
from protocols.errors import BudgetExhausted, Transient
from protocols.grading import Grade, GradeFault
from protocols.ledger import Filtered, Graded
from protocols.messages import LeaseId, lease_number

Verdict = Literal["train", "filter", "filter_for_good", "wait"]


async def run(
    ctx: RunContext, finished: MemoryObjectReceiveStream[LeaseId], graded: MemoryObjectSendStream[Graded]
) -> None:
    """Grade every group that comes."""
    async with anyio.create_task_group() as group:
        async for first in finished:
            for lease_id in (first, *at_hand(finished)):
                ctx.start(group, f"reward {lease_id}", _grade, ctx, lease_id, graded)


async def _grade(ctx: RunContext, lease_id: LeaseId, graded: MemoryObjectSendStream[Graded]) -> None:
    lease = ctx.table[lease_id]
    receipt = lease.finished_receipt
    try:
        grades = await grades_of(ctx, ctx.ports.grader, lease.prompt, receipt)
    except Transient as exc:
        await retry(ctx, lease, exc)
        return
    ctx.window.graded(receipt, grades)
    rewards = [grade.reward for grade in grades if isinstance(grade, Grade)]
    if len(rewards) < (2 if ALGORITHMS[ctx.cfg.algorithm].compares else 1):
        faults = [grade for grade in grades if isinstance(grade, GradeFault)]
        await drop(ctx, lease, "too_few_rewards", f"{faults[0].kind}: {faults[0].detail}")
        return
    event = Graded(
        lease_id=lease_id, receipt=receipt, grades=grades, finished_at_s=lease.finished_at_s, at_s=ctx.seconds
    )
    verdict = _judge(ctx, lease, rewards)
    while verdict == "wait":
        await ctx.changed.wait()
        verdict = _judge(ctx, lease, rewards)
    if verdict == "train":
        await spool.keep(ctx, receipt)  # before the record says so: a payload is released when its group is trained
        await graded.send(event)
        return
    ctx.window.filtered += 1
    prefix = prefix_of(ctx, lease)
    await ctx.record(event, Filtered(lease_id=lease_id, reason="equal_rewards", replaced=verdict == "filter"))
    await release(ctx, prefix)


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
