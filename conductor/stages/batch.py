"""Batch: the ids of graded groups in, the dispatch ids of batches out.

Waits until the trainer is idle and a batch is full, or the epoch has ended and nothing that runs can join.
Groups that are ready beyond a batch are kept for the next one.
"""

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from conductor.abort import drop_remainder
from conductor.context import RunContext
from conductor.core.lease import Lease, State
from protocols.errors import BudgetExhausted, Stalled
from protocols.ledger import Claimed, EpochClosed
from protocols.messages import DispatchId, LeaseId


async def run(
    ctx: RunContext, graded: MemoryObjectReceiveStream[LeaseId], batches: MemoryObjectSendStream[DispatchId]
) -> None:
    """Claim batches for the trainer until no group can come any more."""
    async with anyio.create_task_group() as group:
        ctx.start(group, "batch intake", _take_in, ctx, graded)
        await _claim_batches(ctx, batches)


async def _claim_batches(ctx: RunContext, batches: MemoryObjectSendStream[DispatchId]) -> None:
    while True:
        complete = _epoch_complete(ctx)
        if not (ctx.idle or complete):  # nothing to decide, so the open leases need not be looked through
            await ctx.changed.wait()
            continue
        ready = ctx.table.in_state(State.GRADED)
        if ctx.idle and (batch := _select(ctx, ready, complete=complete)):
            await _claim(ctx, batch, batches)
        elif complete and not ready:
            if ctx.rollouts_done:
                return
            await _close_epoch(ctx)
        elif complete and ctx.idle:
            await drop_remainder(ctx, ready)
        else:
            await ctx.changed.wait()


async def _close_epoch(ctx: RunContext) -> None:
    tally = ctx.table.tally
    if not ctx.gate.close(tally):
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(tally.dropped.items()))
        raise Stalled(
            f"epoch {tally.epoch} trained nothing: its groups were dropped ({reasons}), and the next one is the same"
        )
    await ctx.record(EpochClosed(epoch=tally.epoch))


async def _take_in(ctx: RunContext, graded: MemoryObjectReceiveStream[LeaseId]) -> None:
    """Follow the stream to its end; what has come is graded in the table."""
    async for _ in graded:
        ctx.changed.ring()
    ctx.rollouts_done = True
    ctx.changed.ring()


def _epoch_complete(ctx: RunContext) -> bool:
    """Return whether no further group can join the open epoch."""
    return ctx.rollouts_done or (ctx.gate.ended and not ctx.table.running)


def _select(ctx: RunContext, ready: tuple[Lease, ...], *, complete: bool) -> tuple[Lease, ...]:
    """Return the groups of the next batch, oldest first; none while it is not full."""
    wanted = ctx.admission.wanted(ctx.table.tally)
    if wanted <= 0 and not ready and not ctx.table.running:
        raise BudgetExhausted(
            what="groups whose samples all earned the same, in one step",
            spent=len(ctx.table.tally.filtered_for_batch),
            allowed=ctx.cfg.filter_ceiling,
            field="filter.ceiling",
            last="the batch would be empty; filter.on_ceiling = 'keep' trains such groups as they are",
        )
    if ready and len(ready) >= wanted:
        return ready[: max(1, wanted)]
    # what is carried over is trained too, where there is no next epoch
    return ready if complete and ctx.cfg.remainder != "drop" else ()


async def _claim(ctx: RunContext, batch: tuple[Lease, ...], batches: MemoryObjectSendStream[DispatchId]) -> None:
    dispatch_id = ctx.table.next_dispatch_id()
    ctx.idle = False
    leases = tuple(lease.lease_id for lease in batch)
    registration = ctx.cfg.registration
    await ctx.record(Claimed(dispatch_id=dispatch_id, registration=registration, version=ctx.trained, leases=leases))
    await batches.send(dispatch_id)
