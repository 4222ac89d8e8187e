"""Rollout: lease ids in, the ids of groups whose rollouts are finished out.

Each group is a task of its own; it waits for the executor, at most ``deadlines.group``. A failed attempt is
aborted, then readmitted or dropped.
"""

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from conductor.abort import drop, prefix_of, retry
from conductor.context import RunContext
from protocols.errors import Aborted, DataFault, InvariantError, Transient
from protocols.ledger import Generating
from protocols.messages import LeaseId, WeightVersion
from protocols.rollouts import GroupReceipt, RolloutLease


async def run(
    ctx: RunContext, admitted: MemoryObjectReceiveStream[LeaseId], finished: MemoryObjectSendStream[LeaseId]
) -> None:
    """Play the episodes of every lease that comes."""
    async with anyio.create_task_group() as group:
        async for lease_id in admitted:
            ctx.start(group, f"rollout {lease_id}", _play, ctx, lease_id, finished)


async def _play(ctx: RunContext, lease_id: LeaseId, finished: MemoryObjectSendStream[LeaseId]) -> None:
    lease = ctx.table[lease_id]
    if lease_id in ctx.ending:
        await retry(ctx, lease, Aborted(prefix=prefix_of(ctx, lease)))
        return
    await ctx.record(Generating(lease_id=lease_id, attempt=lease.attempt, version=ctx.publication.serving))
    request = RolloutLease(
        lease_id=lease_id,
        attempt=lease.attempt,
        registration=ctx.cfg.registration,
        prompt=lease.prompt,
        group_size=lease.group_size,
        sampling=ctx.cfg.sampling,
        seed=ctx.cfg.seed,
    )
    try:
        receipt = await ctx.ports.executor.generate(request)
    except (Transient, Aborted) as exc:
        await retry(ctx, lease, exc)
    except DataFault as exc:
        await drop(ctx, lease, exc.reason, str(exc))
    else:
        if lease_id in ctx.ending:  # it was faster than its end, which may have released its payload already
            await retry(ctx, lease, Aborted(prefix=request.prefix))
            return
        if receipt.lease_id != lease_id:
            raise InvariantError(f"{lease_id} was answered with the receipt of {receipt.lease_id}")
        _refuse_the_future(receipt, ctx.trained)
        ctx.table.deliver(receipt)
        await finished.send(lease_id)


def _refuse_the_future(receipt: GroupReceipt, newest: WeightVersion) -> None:
    """Refuse tokens of weights that do not exist yet: their age would count as negative, and hide what is old."""
    for index, sample in enumerate(receipt.samples):
        if any(segment.version > newest for segment in sample.segments):
            raise InvariantError(
                f"sample {index} of {receipt.lease_id} is of {sample.segments}; v{newest} is the newest"
            )
