"""One life of a run: ports open, the stages in one root task group, what is lent settled on any way out."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import TypeVar

import anyio
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from structlog.typing import FilteringBoundLogger

from conductor import restaging
from conductor.bootstrap import sampler_of
from conductor.collector import seldom_collected
from conductor.config import RunConfig
from conductor.context import RunContext
from conductor.core.admission import Admission
from conductor.core.epochs import EpochGate
from conductor.core.failover import state_cause
from conductor.core.planning.wishes import POLICY
from conductor.core.publication import Publication
from conductor.core.waits import Waits
from conductor.failures import Failures, note_later
from conductor.fleet.journal import Journal
from conductor.observe.observer import Observer
from conductor.ports import Ports
from conductor.result import RunResult
from conductor.resuming import begin, restore
from conductor.settling import settle_run
from conductor.stages import admit, batch, evaluate, publish, reward, rollout, train
from conductor.stages.checkpoint import save_checkpoint
from conductor.watchdog import watch
from protocols.aio import deadline
from protocols.errors import InvariantError, Stalled, StateLost
from protocols.ledger import Graded
from protocols.messages import DispatchId, LeaseId, WeightVersion, WorkerId

T = TypeVar("T")


def make_context(
    cfg: RunConfig, ports: Ports, waits: Waits, *, log: FilteringBoundLogger, observer: Observer, failures: Failures
) -> RunContext:
    """Return the state of a run that has not begun."""
    ctx = RunContext(
        cfg=cfg,
        ports=ports,
        log=log,
        observer=observer,
        failures=failures,
        admission=Admission(
            slots=cfg.slots_in_flight,
            batch=cfg.batch_groups,
            max_age=cfg.max_age,
            extra=cfg.extra_groups,
            target=cfg.steps * cfg.batch_groups,
        ),
        gate=EpochGate(remainder=cfg.remainder),
        publication=Publication(cfg.registration),
        sampler=sampler_of(cfg),
        waits=waits,
    )
    ctx.unrecorded = list(ports.incidents)
    return ctx


async def conduct(ctx: RunContext) -> RunResult:
    """Warm up, run the stages, save; on any way out settle what is lent."""
    error: BaseException | None = None
    seconds = 0.0
    try:
        async with anyio.create_task_group() as background:
            journal = journal_of(ctx)
            _look_after(ctx, background, journal)
            await _warm_up(ctx, background)
            await ctx.rewinding.arrive(journal)
            with seldom_collected(ctx.cfg.freeze_gc):
                ctx.began = anyio.current_time()
                await _run_stages(ctx)
                seconds = ctx.seconds
                ctx.enter("saving")
                async with ctx.trainer_turn:
                    await save_checkpoint(ctx)
                await evaluate.evaluate_last(ctx)
            background.cancel_scope.cancel()
        _check_books(ctx)
    except BaseException as exc:
        error = exc
        if isinstance(loss := ctx.failures.first, StateLost):
            ctx.rewinding.judge(loss, version=ctx.trained, checkpoint=ctx.saved)
            if ctx.ports.lose is not None:
                ctx.ports.lose(tuple(map(WorkerId, loss.workers)), state_cause(loss))
        raise
    finally:
        with anyio.move_on_after(2 * ctx.cfg.deadlines.abort, shield=True) as scope:
            await _conclude(ctx, error)
            await _settle(ctx, error)
        if scope.cancelled_caught:
            ctx.log.error("abort.timed_out", deadline_s=2 * ctx.cfg.deadlines.abort, open=ctx.table.accounts.open)
        if isinstance(error, anyio.get_cancelled_exc_class()):
            await _save_when_stopped(ctx, error)  # noqa: ASYNC102 - shielded there, with a deadline
    return _result(ctx, seconds)


def _look_after(ctx: RunContext, background: TaskGroup, journal: Journal) -> None:
    """Start what watches over the run and its workers until the stages have ended."""
    if ctx.cfg.lag_interval_s:
        ctx.start(background, "lag monitor", ctx.lag.run, ctx.cfg.lag_interval_s)
    ctx.start(background, "watchdog", watch, ctx)
    for failover in ctx.ports.failovers:
        ctx.start(background, f"failover of {failover.role.name}", failover.run, journal)
    if ctx.ports.scaler is not None:
        ctx.start(background, "scaling", ctx.ports.scaler.run, journal)


def journal_of(ctx: RunContext) -> Journal:
    """Return what those who look after the fleet know of a run."""

    def save() -> None:
        ctx.checkpoint_wanted = True

    return Journal(trained=lambda: ctx.trained, record=ctx.record_incident, log=ctx.log, save=save, told=ctx.ports.told)


def _result(ctx: RunContext, seconds: float) -> RunResult:
    """Return what the whole run came to, all of its lives together."""
    return RunResult(
        steps=ctx.trained - ctx.first_version,
        metrics=tuple(step.record for step in ctx.steps),
        evaluations=tuple(event.record for event in ctx.evaluations),
        checkpoint=ctx.checkpoint,
        accounts=ctx.table.accounts,
        samples=ctx.table.tally.trained_samples,
        seconds=seconds,
        dropped=dict(ctx.table.tally.dropped),
        failures=dict(ctx.window.totals),
        run_dir=ctx.cfg.run_dir,
    )


async def _warm_up(ctx: RunContext, background: TaskGroup) -> None:
    """Give the engines the trainer's weights; from then on a task sees to it that they stay there."""
    await restore(ctx)
    ctx.enter("warming up")
    await evaluate.draw_prompts(ctx)
    manifest = await train.stage_weights(ctx)
    await begin(ctx, manifest.version)
    if any(failover.role.name == POLICY for failover in ctx.ports.failovers):
        ctx.start(background, "restaging", restaging.run, ctx)
    async with ctx.engines_turn:
        await publish.publish_pending(ctx)
    ctx.log.info("run.started", name=ctx.cfg.name, version=manifest.version, tensors=manifest.tensors)


async def _run_stages(ctx: RunContext) -> None:
    """Run the stages to their end; the bound of the streams is the number of groups in flight."""
    ctx.enter("training")
    bound = ctx.cfg.slots_in_flight
    with ExitStack() as streams:
        admit_out, rollout_in = _stream(streams, tuple[LeaseId, ...], bound)
        rollout_out, reward_in = _stream(streams, LeaseId, bound)
        reward_out, batch_in = _stream(streams, Graded, bound)
        batch_out, train_in = _stream(streams, DispatchId, 1)
        train_out, publish_in = _stream(streams, WeightVersion, 1)
        publish_out, evaluate_in = _stream(streams, WeightVersion, 1)
        async with anyio.create_task_group() as group:
            ctx.start_stage(group, "admit", admit.run, admit_out)
            ctx.start_stage(group, "rollout", rollout.run, rollout_in, rollout_out)
            ctx.start_stage(group, "reward", reward.run, reward_in, reward_out)
            ctx.start_stage(group, "batch", batch.run, batch_in, batch_out)
            ctx.start_stage(group, "train", train.run, train_in, train_out)
            ctx.start_stage(group, "publish", publish.run, publish_in, publish_out)
            if ctx.reserved is not None:
                ctx.start_stage(group, "evaluate", evaluate.run, evaluate_in)


def _stream(
    streams: ExitStack, _item: Callable[..., T], bound: int
) -> tuple[MemoryObjectSendStream[T], MemoryObjectReceiveStream[T]]:
    """Return a stream that is closed with the run even where its stage never began."""
    send, receive = anyio.create_memory_object_stream[T](bound)
    return streams.enter_context(send), streams.enter_context(receive)


async def _save_when_stopped(ctx: RunContext, error: BaseException) -> None:
    """Keep what a run has trained that somebody stopped, where its last step is closed and its record whole."""
    if ctx.closed != ctx.trained or ctx.table.open_dispatches() or ctx.record_failed or not ctx.steps:
        return
    ctx.enter("saving")
    try:
        await save_checkpoint(ctx)
    except Exception as exc:
        ctx.log.exception("checkpoint.failed")
        note_later(error, "the checkpoint", exc)


def _check_books(ctx: RunContext) -> None:
    accounts = ctx.table.accounts
    if accounts.open or not accounts.balanced:
        raise InvariantError(f"the run ended and its books do not: {accounts}")
    if ctx.trained == ctx.first_version:
        reasons = {**ctx.table.tally.dropped, **ctx.table.tally.filtered, **ctx.window.totals}
        raise Stalled(f"no step was trained out of {accounts.admitted} groups: {reasons or 'there were no prompts'}")


async def _settle(ctx: RunContext, error: BaseException | None) -> None:
    """Settle what is lent and release what is stored; a failure here is a note on the error before it."""
    ctx.enter("stopping" if error else "finishing")
    try:
        await settle_run(ctx)
    except Exception as exc:
        if error is None:
            raise
        ctx.log.exception("settle.failed")
        note_later(error, "settling the run", exc)


async def _conclude(ctx: RunContext, error: BaseException | None) -> None:
    """Write down that the job is given up for what was lost, if it is."""
    try:
        with deadline("writing an incident", ctx.cfg.deadlines.abort / 2):
            await ctx.rewinding.conclude(journal_of(ctx))
    except Exception as exc:
        if error is None:
            raise
        note_later(error, "writing an incident", exc)
