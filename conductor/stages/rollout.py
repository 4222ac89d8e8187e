"""Rollout: waves of lease ids in, the ids of groups whose rollouts are finished out.

That the attempts of a wave begin is written down together. Then each group is a task of its own; it waits for the
executor, at most ``deadlines.group``. A failed attempt is aborted, then readmitted or dropped.
"""

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from conductor.abort import drop, prefix_of, retry
from conductor.context import RunContext
from conductor.core.lease import Lease
from protocols.errors import Aborted, DataFault, InvariantError, Transient
from protocols.ledger import Generating
from protocols.messages import LeaseId, WeightVersion
from protocols.rollouts import GroupReceipt, RolloutLease


async def run(
    ctx: RunContext, admitted: MemoryObjectReceiveStream[tuple[LeaseId, ...]], finished: MemoryObjectSendStream[LeaseId]
) -> None:
    """Play the episodes of every lease that comes."""
    async with anyio.create_task_group() as group:
        async for wave in admitted:
            leases = [ctx.table[lease_id] for lease_id in wave]
            now_s = ctx.seconds
            await ctx.record(*(_begun(ctx, lease, now_s) for lease in leases if lease.lease_id not in ctx.ending))
            for lease in leases:
                ctx.start(group, f"rollout {lease.lease_id}", _play, ctx, lease, finished)


def _begun(ctx: RunContext, lease: Lease, now_s: float) -> Generating:
    version = ctx.publication.serving
    return Generating(lease_id=lease.lease_id, attempt=lease.attempt, version=version, at_s=now_s)


async def _play(ctx: RunContext, lease: Lease, finished: MemoryObjectSendStream[LeaseId]) -> None:
    if not lease.generating:  # it was ended before it began
        await retry(ctx, lease, Aborted(prefix=prefix_of(ctx, lease)))
        return
    lease_id = lease.lease_id
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
        lease.finished_at_s = ctx.seconds
        await finished.send(lease_id)


def _refuse_the_future(receipt: GroupReceipt, newest: WeightVersion) -> None:
    """Refuse tokens of weights that do not exist yet: their age would count as negative, and hide what is old."""
    made_by = max(receipt.versions, default=newest)
    if made_by > newest:
        raise InvariantError(f"{receipt.lease_id} has tokens of v{made_by}; v{newest} is the newest")
