"""Which checkpoints stay on the disk. What goes is written down first, so that a crash leaves nothing in doubt."""

from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TypeVar

from conductor import checkpoints
from conductor.config import CheckpointConfig
from conductor.context import RunContext
from conductor.core.registry import Keeping, Kept
from conductor.disk import on_disk
from protocols.errors import PortFailed
from protocols.ledger import CheckpointsReleased
from protocols.messages import WeightVersion

T = TypeVar("T")


def keeping_of(cfg: CheckpointConfig) -> Keeping:
    """Return what a job wants kept."""
    return Keeping(last=cfg.keep, best=cfg.keep_best, metric=cfg.metric, mode=cfg.mode)


def keep_with(ctx: RunContext, written: WeightVersion, there: Collection[WeightVersion]) -> Kept:
    """Decide what stays now that one more is whole, of those that are on the disk."""
    return ctx.table.checkpoints.decide(
        keeping_of(ctx.cfg.checkpoint), pending=lambda version: _pending(ctx, version), written=written, there=there
    )


async def release_held(ctx: RunContext) -> None:
    """Remove what the last evaluation has shown to be worth less than others.

    Raises:
        PortFailed: The disk refuses, or the record.
    """
    registry, wanted = ctx.table.checkpoints, ctx.cfg.checkpoint
    if wanted.keep_best and ctx.evaluations and wanted.metric not in (found := ctx.evaluations[-1].record.metrics):
        ctx.log.warning("checkpoint.not_judged", metric=wanted.metric, there=sorted(found))
    kept = registry.decide(keeping_of(wanted), pending=lambda version: _pending(ctx, version))
    released = tuple(version for version in registry.held if version not in kept.held)
    if released and ctx.cfg.run_dir is not None:
        folder = checkpoints.folder_of(ctx.cfg.run_dir)
        await ctx.record(CheckpointsReleased(versions=released))
        await remove(ctx, [checkpoints.place_of(folder, version) for version in released])


async def remove(ctx: RunContext, folders: Iterable[Path]) -> None:
    """Remove checkpoints that the record does not count on.

    Raises:
        PortFailed: The disk refuses.
    """
    for folder in folders:
        await on_checkpoints(ctx, "removing a checkpoint", lambda folder=folder: checkpoints.remove(folder))


async def on_checkpoints(ctx: RunContext, what: str, work: Callable[[], T]) -> T:
    """Do blocking work among the checkpoints, within ``deadlines.checkpoint``; errors name it as ``what``.

    Cancelling: as ``on_disk``.

    Raises:
        PortFailed: The disk refuses.
    """
    try:
        return await on_disk(what, ctx.cfg.deadlines.checkpoint, work)
    except OSError as exc:
        raise PortFailed(f"{what} failed: {exc}") from exc


def _pending(ctx: RunContext, version: WeightVersion) -> bool:
    """Return whether the evaluation of a version goes on, or is still to come: what was served before never is."""
    if ctx.evaluation is not None and ctx.evaluation.version == version:
        return True
    served = ctx.publication.served
    return (served is None or version >= served) and ctx.evaluation_due(version)
