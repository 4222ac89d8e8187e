"""How a run begins: at its start, or where the last complete checkpoint of its record lies.

A resume goes back to that checkpoint: what was settled later is reopened, the prompts go on behind the last
one admitted, and no folder, metric or event tells of a step twice.
"""

import uuid
from collections.abc import Collection
from pathlib import Path

from conductor import checkpoints
from conductor.checkpoints import Marker
from conductor.config import RunConfig
from conductor.context import RunContext
from conductor.disk import on_disk
from conductor.jobfile import find_changes, job_values, write_job
from conductor.past import Past
from conductor.spool import open_spool
from protocols.errors import ConfigError, CorruptLedger, InvariantError, Problem, UserError
from protocols.ledger import Resumed, RunStarted
from protocols.messages import WeightVersion
from protocols.prompts import PromptSourcePort, SourceState
from protocols.training import CheckpointRequest


async def restore(ctx: RunContext) -> None:
    """Bring table, prompts and trainer to where the record says, if there is a run to go on with.

    Raises:
        UserError: A checkpoint is damaged or missing.
        CorruptLedger: The record and a checkpoint contradict one another.
    """
    if lost := await ctx.ports.ledger.lost():
        ctx.log.error("record.lost", events=lost)
    past = ctx.ports.past
    if past is None:
        await _refuse_checkpoints_without_record(ctx)
        return
    ctx.enter("resuming")
    ctx.origin, ctx.table, ctx.recorded = past.origin, past.table, past.events
    await _load(ctx, past.origin)
    _remember(ctx, past)
    await _rewind_trackers(ctx)


async def begin(ctx: RunContext, version: WeightVersion) -> None:
    """Record that the run begins, or goes on, with the trainer at ``version``."""
    if ctx.origin is None:
        prompts = ctx.ports.prompts
        ctx.origin = RunStarted(
            run_id=uuid.uuid4().hex,
            job=job_values(ctx.cfg),
            version=version,
            prompts=await prompts.state(),
            fingerprint=await prompts.fingerprint(),
            resumable=ctx.cfg.run_dir is not None,
        )
        ctx.trained = ctx.closed = version
        await _keep_job(ctx)
        await open_spool(ctx)
        await ctx.record_beginning(ctx.origin)
    elif version != ctx.trained:
        raise InvariantError(f"the trainer holds v{version} where the run goes on from v{ctx.trained}")
    else:
        await _keep_job(ctx)
        await ctx.record_beginning(Resumed(version=version))
        await open_spool(ctx)
        accounts = ctx.table.accounts
        ctx.log.info("run.resumed", version=version, reopened=accounts.open, committed=accounts.committed)


async def refuse_changes(cfg: RunConfig, prompts: PromptSourcePort, began_as: RunStarted) -> None:
    """Refuse a resume that would train something else than the run began with.

    Raises:
        ConfigError: The job or its data are others.
    """
    changes = find_changes(cfg, began_as.job)
    if not changes and await prompts.fingerprint() != began_as.fingerprint:
        why = "the data, or their order, are not what the run began with"
        mend = "put the old data back, or begin a new run in another folder"
        changes = [Problem(field="prompts", value=None, why=why, mend=mend)]
    if changes:
        raise ConfigError(changes)


async def _refuse_checkpoints_without_record(ctx: RunContext) -> None:
    if ctx.cfg.run_dir is None:
        return
    folder = checkpoints.folder_of(ctx.cfg.run_dir)
    if await on_disk("looking for checkpoints", ctx.cfg.deadlines.record, lambda: checkpoints.complete(folder)):
        raise UserError(f"{folder} holds checkpoints, and the ledger no record of their run; begin in another folder")


async def _load(ctx: RunContext, origin: RunStarted) -> None:
    """Load the newest checkpoint, if there is one, and let the prompts go on behind the last one admitted."""
    found = await _find_checkpoint(ctx)
    version = origin.version
    if found is not None:
        path, marker = found
        _check(path, marker, ctx)
        loaded = await ctx.ports.trainer.load(CheckpointRequest(path=str(path)))
        if loaded != marker.version:
            raise InvariantError(f"the trainer loaded v{loaded} out of {path}")
        version = ctx.saved = marker.version
        ctx.checkpoint = str(path)
    elif version not in ctx.table.settlements.cuts:
        complete = [version for version, cut in ctx.table.settlements.cuts.items() if cut.complete]
        there = ", ".join(f"step-{known}" for known in complete) or "it wrote none"
        mend = "put them back, or begin a new run in another folder"
        raise UserError(f"the run in {ctx.cfg.run_dir} cannot go on without its checkpoints: {there}; {mend}")
    ctx.trained = ctx.closed = version
    position = ctx.table.position
    if position is not None:
        await ctx.ports.prompts.restore(SourceState(position=position, seed=origin.prompts.seed))
    else:
        await ctx.ports.prompts.restore(origin.prompts)


async def _find_checkpoint(ctx: RunContext) -> tuple[Path, Marker] | None:
    """Return the newest complete checkpoint that the record can go back to, verified."""
    if ctx.cfg.run_dir is None:
        return None
    cuts, folder = tuple(ctx.table.settlements.cuts), checkpoints.folder_of(ctx.cfg.run_dir)
    registry, seconds = ctx.table.checkpoints, ctx.cfg.deadlines.checkpoint
    known = {*cuts, *registry.held}
    try:
        unknown = await on_disk("tidying the checkpoints", seconds, lambda: _tidy(folder, known, registry.gone))
        newest = await on_disk("reading the checkpoint", seconds, lambda: _newest(folder, cuts))
    except OSError as exc:
        raise UserError(f"the checkpoints in {folder} cannot be read: {exc}; give access to them") from exc
    if unknown:
        ctx.log.error("checkpoints.set_aside", paths=unknown, why="the record ends before them")
    return newest


def _tidy(folder: Path, known: Collection[WeightVersion], gone: Collection[WeightVersion]) -> list[str]:
    """Remove halves of checkpoints and those that were to go; set those aside that the record has lost.

    Returns:
        Where they lie now.
    """
    checkpoints.remove_leftovers(folder)
    others = {version: path for version, path in checkpoints.complete(folder).items() if version not in known}
    for version in others.keys() & gone:
        checkpoints.remove(others.pop(version))
    return [str(checkpoints.set_aside(path)) for path in others.values()]


def _newest(folder: Path, cuts: Collection[WeightVersion]) -> tuple[Path, Marker] | None:
    there = {version: path for version, path in checkpoints.complete(folder).items() if version in cuts}
    path = there[max(there)] if there else None
    return None if path is None else (path, checkpoints.verify(path))


def _check(path: Path, marker: Marker, ctx: RunContext) -> None:
    if marker.run_id != ctx.run_id:
        why = f"belongs to run {marker.run_id}, the record in the same folder to {ctx.run_id}"
        raise UserError(f"{path} {why}; remove it, or put that run's record back")
    admitted = ctx.table.settlements.cuts[marker.version].admitted
    if marker.admitted != admitted:
        raise CorruptLedger(f"{path} was written after {marker.admitted} groups, and by the record after {admitted}")


def _remember(ctx: RunContext, past: Past) -> None:
    ctx.steps.extend(step for step in past.steps if step.record.step <= ctx.trained)
    ctx.evaluations.extend(done for done in past.evaluations if done.record.step <= ctx.trained)
    ctx.incidents.extend(past.incidents)
    if ctx.evaluations:
        ctx.evaluated = WeightVersion(ctx.evaluations[-1].record.step)
    if ctx.steps:
        ctx.seconds_before = ctx.steps[-1].seconds
        ctx.window.totals.update(ctx.steps[-1].failures)


async def _rewind_trackers(ctx: RunContext) -> None:
    """Let every tracker hold each step up to the checkpoint once."""
    for tracker in ctx.ports.trackers:
        last = await tracker.rewind(ctx.trained)
        for step in list(ctx.steps):
            if step.record.step > last:
                await tracker.log(step.record)


async def _keep_job(ctx: RunContext) -> None:
    if ctx.cfg.run_dir is None:
        return
    try:
        folder = Path(ctx.cfg.run_dir)
        await on_disk("keeping the job", ctx.cfg.deadlines.record, lambda: write_job(ctx.cfg, folder))
    except OSError as exc:
        raise UserError(f"run_dir = {ctx.cfg.run_dir!r} cannot be written to: {exc}; name another folder") from exc
