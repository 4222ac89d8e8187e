"""How a run begins: at its start, or where the last complete checkpoint of its record lies.

A resume goes back to that checkpoint: what was settled later is reopened, the prompts go on behind the last
one admitted, and no folder, metric or event tells of a step twice.
"""

import uuid
from collections.abc import Collection, Sequence
from pathlib import Path

from conductor import checkpoints
from conductor.checkpoints import Marker
from conductor.context import RunContext
from conductor.core.leases import LeaseTable
from conductor.disk import on_disk
from conductor.jobfile import find_changes, job_values, write_job
from conductor.spool import open_spool
from protocols.errors import ConfigError, CorruptLedger, InvariantError, Problem, UserError
from protocols.ledger import Evaluated, Incident, LedgerEvent, Resumed, RunStarted, Scaled, Stepped
from protocols.messages import WeightVersion
from protocols.prompts import SourceState
from protocols.training import CheckpointRequest


async def restore(ctx: RunContext) -> bool:
    """Bring table, prompts and trainer to where the record says; return whether there was a run to go on with.

    Raises:
        ConfigError: The job or its data are others than those that the run began with.
        UserError: A checkpoint is damaged or missing, or the folder holds a run that was not to be resumed.
        CorruptLedger: The record contradicts itself.
    """
    if lost := await ctx.ports.ledger.lost():
        ctx.log.error("record.lost", events=lost)
    events = await ctx.ports.ledger.replay()
    if not events:
        await _refuse_checkpoints_without_record(ctx)
        return False
    if not ctx.resume:
        raise UserError("the ledger holds the record of a run; resume that run, or begin this one with an empty ledger")
    ctx.enter("resuming")
    ctx.origin = _origin(events)
    await _refuse_changes(ctx, ctx.origin)
    ctx.table = await on_disk("rebuilding the table", ctx.cfg.deadlines.start, lambda: rebuild(events))
    ctx.recorded = len(events)
    await _load(ctx, ctx.origin)
    _remember_steps(ctx, events)
    await _rewind_trackers(ctx)
    return True


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


def rebuild(events: Sequence[LedgerEvent]) -> LeaseTable:
    """Return the table that a record describes.

    Raises:
        CorruptLedger: An event cannot follow those before it; it is named by number.
    """
    table = LeaseTable()
    for number, event in enumerate(events):
        try:
            table.apply(event)
        except InvariantError as exc:
            raise CorruptLedger(f"event {number} of the record ({type(event).__name__}): {exc}") from exc
    return table


def steps_of(events: Sequence[LedgerEvent]) -> list[Stepped]:
    """Return the steps that count, in order: those that a resume went back behind do not."""
    steps: list[Stepped] = []
    for event in events:
        if isinstance(event, Stepped):
            steps.append(event)
        elif isinstance(event, Resumed):
            while steps and steps[-1].record.step > event.version:
                steps.pop()
    return steps


def evaluations_of(events: Sequence[LedgerEvent]) -> list[Evaluated]:
    """Return the evaluations that count, in order: those of versions that a resume went back behind do not."""
    done: list[Evaluated] = []
    for event in events:
        if isinstance(event, Evaluated):
            done.append(event)
        elif isinstance(event, Resumed):
            done = [one for one in done if one.record.step <= event.version]
    return done


def aside_of(events: Sequence[LedgerEvent]) -> dict[str, float]:
    """Return which failure domains a run had set aside when it ended, and for how many seconds more.

    As its last incident has it, less what the run has trained since: the time between two lives does not count. When
    that was is told by its version: a record that was summed up has all incidents behind all steps.
    """
    last = next((event for event in reversed(events) if isinstance(event, Incident)), None)
    if last is None:
        return {}
    steps = steps_of(events)
    began_s = max((step.seconds for step in steps if step.record.step <= last.version), default=0.0)
    now_s = steps[-1].seconds if steps else 0.0
    passed_s = max(0.0, now_s - began_s - last.seconds)
    return {domain: seconds - passed_s for domain, seconds in last.aside.items() if seconds > passed_s}


def _origin(events: Sequence[LedgerEvent]) -> RunStarted:
    if not isinstance(events[0], RunStarted):
        raise CorruptLedger(f"the record begins with {type(events[0]).__name__}, not with the start of a run")
    return events[0]


async def _refuse_changes(ctx: RunContext, origin: RunStarted) -> None:
    changes = find_changes(ctx.cfg, origin.job)
    if not changes and await ctx.ports.prompts.fingerprint() != origin.fingerprint:
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


def _remember_steps(ctx: RunContext, events: Sequence[LedgerEvent]) -> None:
    steps = [step for step in steps_of(events) if step.record.step <= ctx.trained]
    ctx.steps.extend(steps)
    ctx.evaluations.extend(done for done in evaluations_of(events) if done.record.step <= ctx.trained)
    ctx.incidents.extend(event for event in events if isinstance(event, Incident | Scaled))
    if ctx.evaluations:
        ctx.evaluated = WeightVersion(ctx.evaluations[-1].record.step)
    if steps:
        ctx.seconds_before = steps[-1].seconds
        ctx.window.totals.update(steps[-1].failures)


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
