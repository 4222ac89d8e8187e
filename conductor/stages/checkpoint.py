"""Checkpoint: the trainer's state under one folder, written aside and renamed when it is whole."""

import anyio

from conductor.context import RunContext
from protocols.training import CheckpointRequest

FOLDER = "checkpoints"


async def save_checkpoint(ctx: RunContext) -> str | None:
    """Write a checkpoint of the current version; the caller has the trainer to itself.

    Returns:
        Its folder, ``checkpoints/step-N`` of the run; None where the run writes nothing.
    """
    if ctx.cfg.run_dir is None:
        return None
    folder = anyio.Path(ctx.cfg.run_dir) / FOLDER
    target = folder / f"step-{ctx.trained}"
    aside = folder / f".step-{ctx.trained}.partial"
    await aside.mkdir(parents=True, exist_ok=True)
    await ctx.ports.trainer.save(CheckpointRequest(path=str(await aside.absolute())))
    await aside.rename(target)
    ctx.log.info("checkpoint.saved", step=ctx.trained, path=str(target))
    return str(target)
