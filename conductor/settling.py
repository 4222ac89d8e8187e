"""The end of a run that still has something lent out: all of it is stopped, settled and written down."""

from collections.abc import Generator
from contextlib import contextmanager

from conductor.abort import stop
from conductor.context import RunContext
from conductor.core.lease import State
from conductor.spool import is_kept, sweep
from protocols.aio import deadline
from protocols.errors import PortFailed
from protocols.ledger import AbortConfirmed, Aborting, Committed, LedgerEvent, Unclaimed


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
    if ctx.table.accounts.open or ctx.evaluation is not None or ctx.owed:
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
    with _tried(failed):
        await sweep(ctx)
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
    """End everything under the prefix; say what could not be confirmed.

    Raises:
        PortFailed: Something may still run; its lease stays ``aborting`` in the record.
    """
    unconfirmed = await stop(ctx, prefix)
    if unconfirmed:
        ctx.log.error("abort.unconfirmed", ids=sorted(unconfirmed))
        raise PortFailed(f"{', '.join(sorted(unconfirmed))} may still run: nobody confirmed that they ended")
    return True


def _intents(ctx: RunContext) -> list[LedgerEvent]:
    """Return the intent to abort every lease that may be aborted now; what is finished and kept is left as it is."""
    stoppable = {State.ADMITTED, State.GENERATING} if is_kept(ctx) else {State.ADMITTED, State.GENERATING, State.GRADED}
    return [Aborting(lease_id=lease.lease_id, reason="run_ended") for lease in ctx.table if lease.state in stoppable]


async def _settle_dispatches(ctx: RunContext) -> None:
    """Ask the trainer what became of the step in doubt: commit it, or take the claim back."""
    for dispatch_id in ctx.table.open_dispatches():
        report = await ctx.ports.trainer.outcome(dispatch_id)
        if report is not None and report.mutated == "yes":
            ctx.trained = report.version
            await ctx.record(Committed(dispatch_id=dispatch_id, version=report.version, leases=report.consumed))
        else:
            await ctx.ports.trainer.discard()
            await ctx.record(Unclaimed(dispatch_id=dispatch_id))
