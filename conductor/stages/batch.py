"""Batch: the grades of groups in, the dispatch ids of batches out.

What was graded in one turn of the loop, or while the record was written, is written down together; from then on it
may be claimed. Waits until the trainer is idle and the sampler selects a batch, or the epoch has ended and nothing
that runs can join. Groups that are ready beyond a batch are kept for the next one, unless they were over-sampled;
those that the sampler finds too old are given up or generated anew.
"""

import math

import anyio
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from conductor.abort import give_up, interrupt, restart
from conductor.context import RunContext
from conductor.core.groups import OpenGroups
from conductor.core.lease import Lease, State
from conductor.core.staleness import STRICT
from conductor.streams import at_hand
from protocols.errors import BudgetExhausted, InvariantError, Stalled
from protocols.ledger import Claimed, EpochClosed, Graded
from protocols.messages import DispatchId, WeightVersion, lease_number


async def run(
    ctx: RunContext, graded: MemoryObjectReceiveStream[Graded], batches: MemoryObjectSendStream[DispatchId]
) -> None:
    """Claim batches for the trainer until no group can come any more."""
    async with anyio.create_task_group() as group:
        ctx.start(group, "batch intake", _take_in, ctx, graded)
        await _claim_batches(ctx, batches, group)


async def _claim_batches(ctx: RunContext, batches: MemoryObjectSendStream[DispatchId], group: TaskGroup) -> None:
    judged: WeightVersion | None = None  # the version that the ages of all open groups were judged for
    while True:
        complete = _epoch_complete(ctx)
        if ctx.idle:
            groups, judged = _unjudged(ctx, judged), ctx.trained
            if await _set_aside(ctx, groups):
                continue
        if ctx.idle and (batch := _select(ctx, complete=complete)):
            await _claim(ctx, batch, batches)
            if ctx.cfg.extra_groups:
                await _end_surplus(ctx, group)
        elif complete and not _groups_left(ctx):
            if ctx.rollouts_done:
                return
            await _close_epoch(ctx)
        elif complete and ctx.idle:
            for lease in ctx.table.in_state(State.GRADED):
                await give_up(ctx, lease, "remainder")
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


async def _take_in(ctx: RunContext, graded: MemoryObjectReceiveStream[Graded]) -> None:
    """Record what was graded, until there is no more of it."""
    async for first in graded:
        wave = (first, *at_hand(graded))
        ctx.ready.extend(event.lease_id for event in wave)
        await ctx.record(*wave)
    ctx.rollouts_done = True
    ctx.changed.ring()


def _epoch_complete(ctx: RunContext) -> bool:
    """Return whether no further group can join the open epoch."""
    return ctx.rollouts_done or (ctx.gate.ended and not ctx.table.running)


def _groups_left(ctx: RunContext) -> bool:
    """Return whether there are groups to train, those included that a step may give back."""
    return bool(ctx.table.count(State.GRADED) or ctx.table.open_dispatches())


def _unjudged(ctx: RunContext, judged: WeightVersion | None) -> OpenGroups:
    """Return the groups that may have come to be too old: all for a new version, then those that became ready."""
    ready, ctx.ready = ctx.ready, []
    fresh = [ctx.table[name] for name in sorted(ready, key=lease_number) if name in ctx.table]
    return OpenGroups(fresh if judged == ctx.trained else ctx.table, ctx.publication.serving)


async def _set_aside(ctx: RunContext, groups: OpenGroups) -> bool:
    """Give up or begin anew what is too old to be trained now; returns whether there was anything."""
    stale = ctx.sampler.evict(groups, version=ctx.trained)
    again = [name for name in ctx.sampler.interrupt(groups, version=ctx.trained) if ctx.table[name].graded]
    # it was being graded when its batch was full without it
    late = [one.lease_id for one in groups if one.ready and one.version < ctx.trained] if ctx.cfg.extra_groups else []
    for lease in map(ctx.table.__getitem__, stale):
        await give_up(ctx, lease, "stale")
    for lease in map(ctx.table.__getitem__, again):
        await restart(ctx, lease)
    for name in late:
        if name in ctx.table and ctx.table[name].graded:
            await give_up(ctx, ctx.table[name], "surplus")
    return bool(stale or again or late)


async def _end_surplus(ctx: RunContext, group: TaskGroup) -> None:
    """Give up what was over-sampled for a batch that is full without it."""
    for lease in ctx.table:
        if lease.graded:
            await give_up(ctx, lease, "surplus")
        elif lease.state is State.ADMITTED:
            ctx.ending[lease.lease_id] = "surplus"
        elif lease.generating:
            ctx.start(group, f"interrupt {lease.lease_id}", interrupt, ctx, lease, "surplus")


def _select(ctx: RunContext, *, complete: bool) -> tuple[Lease, ...]:
    """Return the groups of the next batch, oldest first; none while it is not full."""
    ready = ctx.table.count(State.GRADED)  # a number: the open leases are looked through once for a batch
    wanted = ctx.admission.wanted(ctx.table.tally, ctx.table.unclaimed)
    if wanted <= 0 and not ready and not ctx.table.running:
        raise BudgetExhausted(
            what="groups whose samples all earned the same, in one step",
            spent=len(ctx.table.tally.filtered_for_batch),
            allowed=ctx.cfg.filter_ceiling,
            field="filter.ceiling",
            last="the batch would be empty; filter.on_ceiling = 'keep' trains such groups as they are",
        )
    if ready >= max(1, wanted):
        groups = OpenGroups(ctx.table, ctx.publication.serving)
        chosen = ctx.sampler.select(groups, wanted=max(1, wanted), most=ctx.cfg.batch_groups, version=ctx.trained)
        return tuple(map(ctx.table.__getitem__, chosen))
    # what is carried over is trained too, where there is no next epoch
    return ctx.table.in_state(State.GRADED) if complete and ctx.cfg.remainder != "drop" else ()


async def _claim(ctx: RunContext, batch: tuple[Lease, ...], batches: MemoryObjectSendStream[DispatchId]) -> None:
    _check_ages(ctx, batch)
    dispatch_id = ctx.table.next_dispatch_id()
    ctx.idle = False
    leases = tuple(lease.lease_id for lease in batch)
    claimed = Claimed(
        dispatch_id=dispatch_id,
        registration=ctx.cfg.registration,
        version=ctx.trained,
        leases=leases,
        missing=ctx.cfg.batch_groups - len(leases),
    )
    await ctx.record(claimed)
    await batches.send(dispatch_id)


def _check_ages(ctx: RunContext, batch: tuple[Lease, ...]) -> None:
    if ctx.cfg.staleness not in STRICT:
        return
    bound = math.ceil(ctx.cfg.max_age)
    for lease in batch:
        if ctx.trained - lease.version > bound:
            raise InvariantError(
                f"{lease.lease_id} would be trained at v{ctx.trained} with tokens of v{lease.version}: "
                f"staleness = '{ctx.cfg.staleness}' allows an age of {bound}"
            )
