"""Checkpoint: the trainer's state in a folder. What a resume goes back to is in the record since the step was closed.

The trainer copies its state while nobody else uses it; steps go on while the copy is written, one at a time.
"""

from pathlib import Path

import anyio
from anyio.abc import TaskGroup

from conductor import checkpoints
from conductor.context import RunContext
from conductor.keeping import keep_with, on_checkpoints, remove
from protocols.aio import bounded_shield
from protocols.errors import DeadlineExceeded, InvariantError, SnapshotLost
from protocols.ledger import CheckpointBegun, Checkpointed
from protocols.messages import WeightVersion
from protocols.training import CheckpointRequest


async def save_if_due(ctx: RunContext, writing: TaskGroup) -> None:
    """Begin a checkpoint if the job wants one after this step, or somebody does; a task of ``writing`` ends it.

    One that is still being written is waited for. The caller has the trainer to itself.
    """
    every = ctx.cfg.checkpoint.every
    due = every and (ctx.trained - ctx.first_version) % every == 0
    if not (due or ctx.checkpoint_wanted) or ctx.cfg.run_dir is None:
        return
    began = anyio.current_time()
    while ctx.saving is not None:
        await ctx.changed.wait()
    ctx.checkpoint_wanted = False
    if (copied := await ctx.ports.trainer.snapshot()) != ctx.trained:
        raise InvariantError(f"the trainer copied v{copied} where v{ctx.trained} is trained")
    await ctx.record(CheckpointBegun(version=ctx.trained))
    ctx.saving = ctx.trained
    ctx.start(writing, f"checkpoint v{ctx.saving}", _write, ctx, ctx.cfg.run_dir, ctx.saving)
    ctx.checkpoint_s = anyio.current_time() - began


async def save_checkpoint(ctx: RunContext) -> None:
    """Write a checkpoint of the current version, unless there is one or the run writes nothing.

    Cancelling: one that has begun is finished first, within ``deadlines.checkpoint``.

    Raises:
        DeadlineExceeded: It took longer than that.
        PortFailed: The disk refuses.
    """
    if ctx.cfg.run_dir is not None and ctx.saved != ctx.trained:
        ctx.saving = ctx.trained
        await _write(ctx, ctx.cfg.run_dir, ctx.saving)


async def _write(ctx: RunContext, run_dir: str, version: WeightVersion) -> None:
    seconds = ctx.cfg.deadlines.checkpoint
    try:
        with bounded_shield(seconds) as scope:
            await _save_or_put_off(ctx, checkpoints.folder_of(run_dir), version)
    finally:
        ctx.saving = None
        ctx.changed.ring()
    if scope.cancelled_caught:
        raise DeadlineExceeded(what=f"the checkpoint of v{version}", deadline_s=seconds)


async def _save_or_put_off(ctx: RunContext, folder: Path, version: WeightVersion) -> None:
    """Save, or where the copy was lost let the next step do it: by now the trainer has other parameters.

    Raises:
        BudgetExhausted: It was lost too often in a row.
    """
    patience, began = ctx.patience("writing a checkpoint"), anyio.current_time()
    try:
        await _save(ctx, folder, version)
    except SnapshotLost as exc:
        patience.fail(exc, began=began, now=anyio.current_time())
        ctx.log.warning("checkpoint.lost", step=version, failures=patience.failures, error=str(exc))
        ctx.checkpoint_wanted = True
    else:
        patience.succeed()


async def _save(ctx: RunContext, folder: Path, version: WeightVersion) -> None:
    began, began_at_s = anyio.current_time(), ctx.seconds
    admitted = ctx.table.settlements.cuts[version].admitted
    aside = await on_checkpoints(ctx, "beginning a checkpoint", lambda: checkpoints.aside(folder, version))
    try:
        written = await ctx.ports.trainer.save(CheckpointRequest(path=str(aside)))
    except SnapshotLost:
        await remove(ctx, [aside])  # noqa: ASYNC120 - shielded by the caller
        raise
    if written != version:
        raise InvariantError(f"the trainer saved v{written} where v{version} is trained")

    def seal() -> Path:
        return checkpoints.seal(aside, run_id=ctx.run_id, version=version, admitted=admitted)

    path = await on_checkpoints(ctx, "writing a checkpoint", seal)
    ctx.saved, ctx.checkpoint = version, str(path)
    await _keep(ctx, folder, version, began_at_s)
    ctx.log.info("checkpoint.saved", step=version, path=str(path), seconds=anyio.current_time() - began)


async def _keep(ctx: RunContext, folder: Path, version: WeightVersion, began_at_s: float) -> None:
    """Record that the checkpoint is complete, then remove those that are not kept, then sum the record up."""
    there = await on_checkpoints(ctx, "listing the checkpoints", lambda: checkpoints.complete(folder))
    known = ctx.table.checkpoints.whole
    kept = keep_with(ctx, version, there)
    at_s = ctx.seconds
    await ctx.record(Checkpointed(version=version, kept=kept.last, held=kept.held, began_at_s=began_at_s, at_s=at_s))
    await remove(ctx, [there[old] for old in known if old in there and old not in {*kept.last, *kept.held}])
    if 0 < ctx.cfg.checkpoint.compact_events <= ctx.recorded:
        before = ctx.recorded
        await ctx.compact_record()
        ctx.log.info("record.compacted", events=before, into=ctx.recorded)
