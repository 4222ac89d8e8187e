"""Stopping leased work: an action of its own, confirmed, bounded and safe to repeat.

1. The intent is written. 2. Under a shield with a deadline the executor ends the attempt's episodes and
requests and releases its payloads, and the engines say what lives; again and again until nothing does.
3. The outcome is written. The error that caused it goes on unchanged.
"""

from itertools import count
from typing import Literal

import anyio

from conductor.context import RunContext
from conductor.core.lease import Lease
from protocols.aio import bounded_shield
from protocols.errors import BudgetExhausted, ConductorError, Stalled, Transient
from protocols.ledger import AbortConfirmed, Aborting, Dropped, Readmitted
from protocols.messages import attempt_prefix
from protocols.pauses import pause_s

_NOT_FOR_DATA = ("remainder", "stale", "surplus")
_JUDGED_FROM = 10  # admissions after which the share of dropped groups says something


def prefix_of(ctx: RunContext, lease: Lease) -> str:
    """Return the prefix of the lease's attempt: of its requests, and the owner of its payloads."""
    return attempt_prefix(ctx.cfg.registration, lease.lease_id, lease.attempt)


async def retry(ctx: RunContext, lease: Lease, error: ConductorError) -> None:
    """Abort an attempt that failed through no fault of its data, and admit the group again.

    One that was ended on purpose goes on as whoever ended it wanted.

    Raises:
        BudgetExhausted: It was the last attempt.
    """
    purpose = ctx.ending.pop(lease.lease_id, None)
    if purpose == "restart":
        await restart(ctx, lease)
        return
    if purpose == "surplus":
        await give_up(ctx, lease, "surplus")
        return
    ctx.window.failed(type(error).__name__)
    ctx.log.warning("group.retried", lease_id=lease.lease_id, attempt=lease.attempt, error=str(error))
    await _abort(ctx, lease, reason=type(error).__name__)
    if lease.tries >= ctx.cfg.attempts:
        raise BudgetExhausted(
            what=f"group {lease.lease_id}",
            spent=lease.tries,
            allowed=ctx.cfg.attempts,
            field="attempts",
            last=str(error),
        ) from error
    await anyio.sleep(pause_s(lease.tries, lease.lease_id))
    await ctx.record(Readmitted(lease_id=lease.lease_id, attempt=lease.attempt + 1))
    ctx.readmitted.append(lease.lease_id)
    ctx.changed.ring()


async def drop(ctx: RunContext, lease: Lease, reason: str, detail: str = "") -> None:
    """Abort a group whose data is bad and give it up.

    Raises:
        BudgetExhausted: Too large a share of the groups was dropped.
    """
    ctx.log.warning("group.dropped", lease_id=lease.lease_id, reason=reason, detail=detail)
    await _give_up(ctx, lease, reason)
    ctx.window.dropped += 1
    admitted = ctx.table.accounts.admitted
    dropped = sum(count for reason, count in ctx.table.tally.dropped.items() if reason not in _NOT_FOR_DATA)
    if admitted >= _JUDGED_FROM and dropped > ctx.cfg.max_dropped * admitted:
        raise BudgetExhausted(
            what="groups dropped for their data",
            spent=dropped,
            allowed=int(ctx.cfg.max_dropped * admitted),
            field="max_dropped",
            last=f"{reason} {detail}".strip(),
        )


async def give_up(ctx: RunContext, lease: Lease, reason: Literal["remainder", "stale", "surplus"]) -> None:
    """Give up a group that nothing is wrong with."""
    ctx.window.waste(lease)
    await _give_up(ctx, lease, reason)


async def restart(ctx: RunContext, lease: Lease) -> None:
    """Admit a group again that is too old, to be generated under newer weights."""
    ctx.window.waste(lease)
    await _abort(ctx, lease, "over_age")
    await ctx.record(Readmitted(lease_id=lease.lease_id, attempt=lease.attempt + 1, failed=False))
    ctx.readmitted.append(lease.lease_id)
    ctx.changed.ring()


async def interrupt(ctx: RunContext, lease: Lease, purpose: Literal["restart", "surplus"] = "restart") -> None:
    """Cut a group short that is being generated; whoever plays it learns that, and what for."""
    if lease.generating:
        ctx.ending[lease.lease_id] = purpose
        await stop(ctx, prefix_of(ctx, lease))


async def _give_up(ctx: RunContext, lease: Lease, reason: str) -> None:
    await _abort(ctx, lease, reason)
    await ctx.record(Dropped(lease_id=lease.lease_id, reason=reason))


async def _abort(ctx: RunContext, lease: Lease, reason: str) -> None:
    """Abort a lease. Until that is confirmed it stays ``aborting``, and its slot is not given back.

    Raises:
        Stalled: It was not confirmed within ``deadlines.reconcile``.
    """
    await ctx.record(Aborting(lease_id=lease.lease_id, reason=reason))
    began = anyio.current_time()
    for tries in count(1):
        unconfirmed = await stop(ctx, prefix_of(ctx, lease))
        if not unconfirmed:
            break
        ids, tried_s = sorted(unconfirmed), anyio.current_time() - began
        ctx.log.warning("abort.unconfirmed", lease_id=lease.lease_id, ids=ids, tries=tries, seconds=tried_s)
        until_next_s = pause_s(tries, lease.lease_id)
        if tried_s + until_next_s > ctx.cfg.deadlines.reconcile:
            raise Stalled(
                f"{lease.lease_id} was aborted {tries} times in {tried_s:.0f} s for {reason}, and "
                f"{', '.join(ids)} may still run; deadlines.reconcile allows {ctx.cfg.deadlines.reconcile:g} s"
            )
        await anyio.sleep(until_next_s)
    await ctx.record(AbortConfirmed(lease_id=lease.lease_id))


async def stop(ctx: RunContext, prefix: str) -> frozenset[str]:
    """Try once, under a shield with a deadline, to end everything under a prefix. Idempotent.

    Returns:
        What may still run: ids that the executor or the engines themselves name, engines that did not answer, or
        the prefix where nobody answered.
    """
    unconfirmed = frozenset({prefix})
    with bounded_shield(ctx.cfg.deadlines.abort):
        try:
            report = await ctx.ports.executor.abort(prefix)
            live = await ctx.ports.inference.live_requests()
            await ctx.ports.backend.payloads.release(prefix)
        except Transient as exc:
            ctx.log.warning("abort.failed", prefix=prefix, error=str(exc))
        else:
            unconfirmed = report.unconfirmed | {name for name in live if name.startswith(prefix)}
    return unconfirmed
