"""Train: dispatch ids in, versions of staged weights out.

Waits for the trainer, at most ``deadlines.train``. A step that changed nothing gives its groups up; one
canonical log line closes each step.
"""

from contextlib import suppress

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from conductor.abort import drop, prefix_of, retry
from conductor.algorithms.table import ALGORITHMS
from conductor.context import RunContext
from conductor.core.lease import Lease, State
from conductor.observe.metrics import age_metrics
from conductor.patience import patiently, release, release_all
from conductor.spool import sweep
from conductor.stages.checkpoint import save_if_due
from protocols.aio import owned
from protocols.errors import InvariantError, PayloadLost, PortFailed, Transient
from protocols.grading import Grade
from protocols.inference import WeightsManifest
from protocols.ledger import Committed, Stepped, Unclaimed
from protocols.messages import DispatchId, WeightVersion
from protocols.tracking import StepRecord
from protocols.training import BatchLease, GroupRow, SampleRow, StageRequest, StepReport

_SHORTENED = 0.95
_JUDGED_FROM = 10  # steps after which a ratio of lengths says something
_MISMATCHED = 0.02  # nats a token, on the mean; half precision alone stays below


async def run(
    ctx: RunContext,
    batches: MemoryObjectReceiveStream[DispatchId],
    staged: MemoryObjectSendStream[WeightVersion],
) -> None:
    """Train on every batch that comes; a checkpoint that was begun is finished before the stage is."""
    async with anyio.create_task_group() as writing:
        began = anyio.current_time()
        _wait_for_batch(ctx)
        async for dispatch_id in batches:
            async with ctx.trainer_turn:
                waited = anyio.current_time()
                leases = ctx.table.dispatch(dispatch_id)
                batch = batch_lease(ctx, dispatch_id, leases)
                try:
                    report = await _step(ctx, batch)
                except PayloadLost as exc:
                    await _give_back(ctx, batch, leases, exc)
                    _wait_for_batch(ctx)
                    continue
                trained = anyio.current_time()
                if await _settle(ctx, batch, leases, report):
                    await stage_weights(ctx)
                    with suppress(anyio.WouldBlock):  # one that waits there already means: whatever is newest
                        staged.send_nowait(ctx.trained)
                    now = anyio.current_time()
                    times = {
                        "time/step_s": now - began,
                        "time/wait_s": waited - began - ctx.checkpoint_s,
                        "time/train_s": trained - waited,
                    }
                    began = now
                    await _close_step(ctx, batch, leases, report, times)
                    await sweep(ctx)
                    await save_if_due(ctx, writing)
            _wait_for_batch(ctx)


def _wait_for_batch(ctx: RunContext) -> None:
    ctx.idle = True
    ctx.changed.ring()


def batch_lease(ctx: RunContext, dispatch_id: DispatchId, leases: tuple[Lease, ...]) -> BatchLease:
    """Bind the claimed groups to the trainer's version, with an advantage for every sample."""
    rewards = [[grade.reward for grade in lease.grades if isinstance(grade, Grade)] for lease in leases]
    advantages = ALGORITHMS[ctx.cfg.algorithm].advantages(rewards)
    return BatchLease(
        dispatch_id=dispatch_id,
        registration=ctx.cfg.registration,
        version=ctx.trained,
        groups=tuple(map(_row, leases, advantages)),
    )


def _row(lease: Lease, advantages: tuple[float, ...]) -> GroupRow:
    """Return the row of one group, given the advantages of its graded samples; the others weigh nothing."""
    left = iter(advantages)
    samples = (
        SampleRow(sample=index, advantage=next(left), reward=grade.reward)
        if isinstance(grade, Grade)
        else SampleRow(sample=index, advantage=0.0, weight=0.0)
        for index, grade in enumerate(lease.grades)
    )
    return GroupRow(
        lease_id=lease.lease_id,
        attempt=lease.attempt,
        payload=lease.finished_receipt.payload,
        samples=tuple(samples),
    )


async def _step(ctx: RunContext, batch: BatchLease) -> StepReport:
    """Take the step, again where it did not happen. Where the reply is lost, the trainer is asked whether it did.

    Raises:
        PayloadLost: Of a group; nothing changed, and the gradient window is closed.
        WorkerLost: The trainer is gone.
        BudgetExhausted: It failed too often.
    """
    trainer, name = ctx.ports.trainer, batch.dispatch_id

    async def attempt() -> StepReport:
        try:
            return await trainer.train_step(batch)
        except Transient as exc:
            failure = exc
        report = await patiently(ctx, "asking for the outcome of a step", name, lambda: trainer.outcome(name))
        if report is None:
            await patiently(ctx, "discarding gradients", name, trainer.discard)
            raise failure
        ctx.log.warning("step.reply_lost", dispatch_id=name, error=str(failure))
        return report

    return await patiently(ctx, "a train step", name, attempt)


async def _give_back(ctx: RunContext, batch: BatchLease, leases: tuple[Lease, ...], failure: PayloadLost) -> None:
    """Take a claim back whose step lost payloads of groups: these are generated anew at once, the others are ready.

    Raises:
        InvariantError: They are payloads of no group of the batch.
    """
    owners = {failure.owner, *failure.others}
    rows = zip(leases, batch.groups, strict=True)
    lost = {row.payload.owner: lease for lease, row in rows if row.payload.owner in owners}
    if not lost:
        raise InvariantError(f"{batch.dispatch_id} has no group whose payload is lost: {failure}")
    await ctx.record(Unclaimed(dispatch_id=batch.dispatch_id))
    async with anyio.create_task_group() as tasks:  # each waits a while before it is admitted again
        for owner, lease in lost.items():
            error = PayloadLost(owner=owner, cause=failure.cause)
            tasks.start_soon(owned, "retry", retry, ctx, lease, error, name=f"retry of {lease.lease_id}")


async def _settle(ctx: RunContext, batch: BatchLease, leases: tuple[Lease, ...], report: StepReport) -> bool:
    """Record the outcome of a step; return whether parameters changed."""
    if report.dispatch_id != batch.dispatch_id:
        raise InvariantError(f"{batch.dispatch_id} was answered with the report of {report.dispatch_id}")
    if report.mutated == "partial":
        await ctx.ports.trainer.discard()
        raise PortFailed(f"{batch.dispatch_id} changed some of the parameters only; load the last checkpoint")
    if report.mutated == "no":
        await ctx.record(Unclaimed(dispatch_id=batch.dispatch_id))
        for lease in leases:
            await drop(ctx, lease, "step_changed_nothing", f"{batch.dispatch_id}: {report.metrics}")
        return False
    if report.version != ctx.trained + 1:  # the admission law counts a version for each batch
        raise InvariantError(f"{batch.dispatch_id} made v{report.version} out of v{ctx.trained}")
    prefixes = [prefix_of(ctx, lease) for lease in leases]
    ctx.trained = report.version  # with the table, or who is cancelled below would save this version for the one before
    await ctx.record(Committed(dispatch_id=batch.dispatch_id, version=report.version, leases=report.consumed))
    await release_all(ctx, prefixes)
    return True


async def stage_weights(ctx: RunContext) -> WeightsManifest:
    """Stage the trainer's weights for publishing; the caller has the trainer to itself."""
    manifest = await _staged(ctx)
    superseded = ctx.publication.stage(manifest)
    if superseded is not None:
        await release(ctx, superseded.payload.owner)
    return manifest


async def stage_again(ctx: RunContext) -> None:
    """Stage the weights once more that were staged last; the caller has the trainer to itself."""
    ctx.publication.stage_again(await _staged(ctx))


async def _staged(ctx: RunContext) -> WeightsManifest:
    # an evaluation generates from these weights while the next step changes the parameters
    exclusive = ctx.cfg.max_age == 0 and not ctx.evaluation_due(ctx.trained)
    request = StageRequest(owner=ctx.publication.owner(ctx.trained), exclusive=exclusive)
    manifest = await patiently(ctx, "staging weights", request.owner, lambda: ctx.ports.trainer.stage_weights(request))
    if ctx.origin is not None and manifest.version != ctx.trained:
        raise InvariantError(f"weights v{manifest.version} were staged at v{ctx.trained}")
    return manifest


async def _close_step(
    ctx: RunContext, batch: BatchLease, leases: tuple[Lease, ...], report: StepReport, times: dict[str, float]
) -> None:
    """Take the metrics of the step to the log, the trackers and whoever watches."""
    ages = [batch.version - version for lease in leases for version in _oldest(lease)]
    samples = sum([row.weight > 0 for group in batch.groups for row in group.samples])
    tokens = sum([lease.tokens for lease in leases])
    lag_p99_s, lag_max_s = ctx.lag.take()
    step_s = max(times["time/step_s"], 1e-9)
    metrics = {
        **ctx.window.take(),
        **age_metrics(ages),
        "length/ratio": _length_ratio(ctx, leases),
        **report.metrics,
        **times,
        "time/publish_s": ctx.publish_s,
        "time/checkpoint_s": ctx.checkpoint_s,
        "groups/trained": float(len(leases)),
        "groups/aborting": float(ctx.table.count(State.ABORTING)),
        "samples/trained": float(samples),
        "tokens/trained": float(tokens),
        "throughput/samples_per_s": samples / step_s,
        "throughput/tokens_per_s": tokens / step_s,
        "loop/lag_p99_s": lag_p99_s,
        "loop/lag_max_s": lag_max_s,
    }
    compares = ALGORITHMS[ctx.cfg.algorithm].compares
    if compares and not any(row.advantage for group in batch.groups for row in group.samples):
        ctx.log.warning("step.taught_nothing", step=report.version, why="the rewards of each group are all equal")
    _tell_of_mismatch(ctx, metrics)
    ctx.checkpoint_s = 0.0
    record = StepRecord(step=report.version, metrics=metrics)
    await _remember(ctx, record)
    ctx.observer.stepped(record, ctx.table.accounts)
    ctx.log.info("step.trained", step=record.step, **metrics)
    for tracker in ctx.ports.trackers:
        await tracker.log(record)


def _tell_of_mismatch(ctx: RunContext, metrics: dict[str, float]) -> None:
    """Warn where engines and trainer compute other probabilities with the same weights."""
    apart = metrics.get("mismatch/mean", 0.0)
    if metrics["age/max"] == 0 and apart > _MISMATCHED:
        ctx.log.warning(
            "engines.disagree",
            mean_nats=apart,
            max_nats=metrics.get("mismatch/max"),
            why="engines and trainer give the same tokens other probabilities",
            mend="compute in one precision, see what docs/engines.md says of log-probabilities, "
            "or correct for it: train.importance = 'token'",
        )


def _length_ratio(ctx: RunContext, leases: tuple[Lease, ...]) -> float:
    ratio = ctx.window.length_ratio(lease.finished_receipt for lease in leases)
    if ratio < _SHORTENED and len(ctx.steps) >= _JUDGED_FROM:
        ctx.log.warning("data.shortened", ratio=ratio, why=f"staleness = '{ctx.cfg.staleness}' gives up long groups")
    return ratio


async def _remember(ctx: RunContext, record: StepRecord) -> None:
    """Record what the step came to: what is told of a run that was resumed comes from there."""
    publishes, ctx.publishes = tuple(ctx.publishes), []
    step = Stepped(record=record, seconds=ctx.seconds, failures=dict(ctx.window.totals), publishes=publishes)
    ctx.steps.append(step)
    ctx.closed = WeightVersion(record.step)
    await ctx.record(step)


def _oldest(lease: Lease) -> list[WeightVersion]:
    """Return the version of the oldest token of each sample that has tokens."""
    samples = [sample.segments for sample in lease.finished_receipt.samples if sample.segments]
    return [min([segment.version for segment in segments]) for segments in samples]
