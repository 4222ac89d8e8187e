"""Stopping leased work: an action of its own, confirmed, bounded and safe to repeat.

1. The intent is written. 2. Under a shield with a deadline the executor ends the attempt's episodes and
requests and releases its payloads. 3. The outcome is written. The error that caused it goes on unchanged.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from conductor.context import RunContext
from conductor.core.lease import Lease, State
from protocols.aio import bounded_shield, deadline
from protocols.errors import BudgetExhausted, ConductorError, PortFailed
from protocols.inference import AbortReport
from protocols.ledger import AbortConfirmed, Aborting, Committed, Dropped, LedgerEvent, Readmitted, Unclaimed
from protocols.messages import attempt_prefix

_NOT_FOR_DATA = ("remainder", "surplus")
_JUDGED_FROM = 10  # admissions after which the share of dropped groups says something


def prefix_of(ctx: RunContext, lease: Lease) -> str:
    """Return the prefix of the lease's attempt: of its requests, and the owner of its payloads."""
    return attempt_prefix(ctx.cfg.registration, lease.lease_id, lease.attempt)


async def retry(ctx: RunContext, lease: Lease, error: ConductorError) -> None:
    """Abort an attempt that failed through no fault of its data, and admit the group again.

    Raises:
        BudgetExhausted: It was the last attempt.
    """
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


async def drop_remainder(ctx: RunContext, leases: Sequence[Lease]) -> None:
    """Give up graded groups that fill no batch at the end of an epoch."""
    for lease in leases:
        await _give_up(ctx, lease, "remainder")


async def _give_up(ctx: RunContext, lease: Lease, reason: str) -> None:
    await _abort(ctx, lease, reason)
    await ctx.record(Dropped(lease_id=lease.lease_id, reason=reason))


async def _abort(ctx: RunContext, lease: Lease, reason: str) -> None:
    await ctx.record(Aborting(lease_id=lease.lease_id, reason=reason))
    prefix = prefix_of(ctx, lease)
    report = AbortReport(unconfirmed=frozenset({prefix}))
    with bounded_shield(ctx.cfg.deadlines.abort):
        report = await ctx.ports.executor.abort(prefix)
        await ctx.ports.backend.payloads.release(prefix)
    if report.unconfirmed:
        raise PortFailed(
            f"abort of {lease.lease_id} was not confirmed within {ctx.cfg.deadlines.abort:g} s: "
            f"{', '.join(sorted(report.unconfirmed))} may still run"
        )
    await ctx.record(AbortConfirmed(lease_id=lease.lease_id))


async def settle_run(ctx: RunContext) -> None:
    """Abort whatever a run that ends early still has lent out, and release all that it stored.

    Aborted leases stay open, to be readmitted. One abort by the registration's prefix reaches every attempt.
    Each act is tried whatever became of those before it, and a ledger that hangs leaves time for the abort.
    The caller shields it.

    Raises:
        Exception: The first act that failed, the others as notes.
    """
    prefix = ctx.cfg.registration.prefix
    stopped = False
    failed: list[Exception] = []
    if ctx.table.accounts.open:
        with _tried(failed), deadline("writing what is aborted", ctx.cfg.deadlines.abort / 2):
            await ctx.record(*_intents(ctx))
        with _tried(failed):
            stopped = await _stop(ctx, prefix)
    for owner in (prefix, ctx.publication.owners):
        with _tried(failed):
            await ctx.ports.backend.payloads.release(owner)
    if ctx.table.accounts.open:
        with _tried(failed):
            await _settle_dispatches(ctx)
        with _tried(failed):
            await ctx.record(*_intents(ctx))
    if stopped:
        with _tried(failed):
            aborting = ctx.table.in_state(State.ABORTING)
            await ctx.record(*(AbortConfirmed(lease_id=lease.lease_id) for lease in aborting))
    for error in failed[1:]:
        failed[0].add_note(f"then {type(error).__name__}: {error}")
    if failed:
        raise failed[0]


@contextmanager
def _tried(failed: list[Exception]) -> Generator[None]:
    try:
        yield
    except Exception as exc:  # noqa: BLE001 - raised when all has been tried
        failed.append(exc)


async def _stop(ctx: RunContext, prefix: str) -> bool:
    """End everything under the prefix; return whether all of it is confirmed."""
    report = await ctx.ports.executor.abort(prefix)
    if report.unconfirmed:
        ctx.log.error("abort.unconfirmed", ids=sorted(report.unconfirmed))
    return not report.unconfirmed


def _intents(ctx: RunContext) -> list[LedgerEvent]:
    """Return the intent to abort every lease that may be aborted now."""
    stoppable = {State.ADMITTED, State.GENERATING, State.GRADED}
    return [Aborting(lease_id=lease.lease_id, reason="run_ended") for lease in ctx.table if lease.state in stoppable]


async def _settle_dispatches(ctx: RunContext) -> None:
    """Ask the trainer what became of the step in doubt: commit it, or take the claim back."""
    for dispatch_id in ctx.table.open_dispatches():
        report = await ctx.ports.trainer.outcome(dispatch_id)
        if report is not None and report.mutated == "yes":
            await ctx.record(Committed(dispatch_id=dispatch_id, version=report.version, leases=report.consumed))
        else:
            await ctx.ports.trainer.discard()
            await ctx.record(Unclaimed(dispatch_id=dispatch_id))
