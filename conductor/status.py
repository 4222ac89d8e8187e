"""Takes the status of a run: what its own state says, and what its engines say when they are asked."""

from collections.abc import Iterable, Mapping
from contextlib import suppress

import anyio

from conductor.config import RunConfig
from conductor.context import RunContext
from conductor.core.evaluation import Evaluation
from conductor.core.lease import RUNNING, Lease, State
from conductor.core.status import (
    MOST_LISTED,
    EngineStanding,
    EvaluationStatus,
    GroupStatus,
    RunStatus,
    WaitStatus,
    WorkerStanding,
)
from conductor.core.waits import Wait, Waits
from protocols.incidents import Incident, Scaled
from protocols.inference import EngineStatus
from protocols.messages import WorkerId

_OF_GROUPS = frozenset({"RolloutExecutor.generate", "InferenceController.generate", "Grader.grade"})
"""Told of with their group."""

_THROUGHPUT = {
    "throughput/samples_per_s": "samples_per_s",
    "throughput/tokens_per_s": "tokens_per_s",
    "time/step_s": "step_s",
}


def opening_status(cfg: RunConfig, waits: Waits) -> RunStatus:
    """Return where a run stands whose ports are being opened."""
    now = anyio.current_time()
    return RunStatus(
        name=cfg.name,
        phase="starting",
        steps=cfg.steps,
        quiet_s=now - waits.moved,
        stall_s=cfg.deadlines.stall_s,
        slots=cfg.slots_in_flight,
        waits=tuple(_wait(wait, now) for wait in list(waits)[:MOST_LISTED]),
        open_waits=len(waits),
    )


def take_status(
    ctx: RunContext, engines: tuple[EngineStanding, ...] = (), workers: tuple[WorkerStanding, ...] = ()
) -> RunStatus:
    """Return where the run stands now, in a time that does not grow with its length."""
    now, table, admission = anyio.current_time(), ctx.table, ctx.admission
    by_group = {wait.of: wait for wait in ctx.waits if wait.call in _OF_GROUPS}
    others = [wait for wait in ctx.waits if wait.call not in _OF_GROUPS]
    running = [lease for lease in table if lease.state in RUNNING]
    return RunStatus(
        name=ctx.cfg.name,
        run_id=ctx.run_id,
        phase=ctx.phase,
        step=ctx.trained - ctx.first_version,
        steps=ctx.cfg.steps,
        seconds=ctx.seconds,
        quiet_s=now - ctx.waits.moved,
        stall_s=ctx.cfg.deadlines.stall_s,
        trained=ctx.trained,
        served=ctx.publication.served,
        staged=ctx.publication.staged,
        accounts=table.accounts,
        samples=table.sample_accounts,
        states={state.value: table.count(state) for state in State if table.count(state)},
        slots=ctx.cfg.slots_in_flight,
        running=table.running,
        wanted=admission.wanted(table.tally, table.unclaimed),
        ready=table.count(State.GRADED),
        grants=admission.grants(table.tally, accepted=table.accepted, running=table.running),
        trainer_idle=ctx.idle,
        exhausted=ctx.gate.last,
        epoch_over=ctx.gate.ended,
        oldest=_oldest(ctx, table.in_state(State.GRADED)),
        groups=tuple(_group(lease, by_group, now) for lease in running[:MOST_LISTED]),
        waits=tuple(_wait(wait, now) for wait in others[:MOST_LISTED]),
        open_waits=len(ctx.waits),
        engines=engines[:MOST_LISTED],
        workers=workers[:MOST_LISTED],
        incidents=sum(isinstance(event, Incident) and event.verdict != "noted" for event in ctx.incidents),
        scaled=_scaled(ctx.incidents),
        evaluation=None
        if ctx.evaluation is None
        else _evaluation(ctx.evaluation, now, reserved=ctx.reserved is not None),
        throughput=_throughput(ctx),
        failures=dict(ctx.window.totals),
        checkpoint=ctx.checkpoint,
    )


async def ask_engines(ctx: RunContext) -> tuple[EngineStanding, ...]:
    """Return what the engines say of themselves; nothing where nobody can be asked.

    Whoever only watches a run does not end it: what fails here is left to those who need the engines.
    """
    with suppress(Exception):
        standing = _standings(await ctx.ports.inference.statuses(), evaluates=False)
        if ctx.reserved is not None:
            standing += _standings(await ctx.reserved.statuses(), evaluates=True)
        return standing
    return ()


def _standings(statuses: Mapping[WorkerId, EngineStatus | None], *, evaluates: bool) -> tuple[EngineStanding, ...]:
    return tuple(
        EngineStanding(name=name, answers=False, evaluates=evaluates)
        if status is None
        else EngineStanding(
            name=name,
            version=status.version,
            live=status.live,
            paused=status.paused,
            held=status.held,
            allowed=status.allowed,
            evaluates=evaluates,
        )
        for name, status in sorted(statuses.items())
    )


async def ask_launcher(ctx: RunContext) -> tuple[WorkerStanding, ...]:
    """Return what the launcher knows of the workers; nothing where it does not answer."""
    with suppress(Exception):
        states = await ctx.ports.backend.launcher.poll()
        return tuple(
            WorkerStanding(name=name, pid=state.pid, running=state.running) for name, state in sorted(states.items())
        )
    return ()


def _group(lease: Lease, waits: Mapping[str, Wait], now: float) -> GroupStatus:
    wait = waits.get(lease.lease_id)
    return GroupStatus(
        lease_id=lease.lease_id,
        state=lease.state.value,
        attempt=lease.attempt,
        call="" if wait is None else wait.call,
        seconds=0.0 if wait is None else now - wait.since,
        deadline_s=0.0 if wait is None else wait.deadline_s,
    )


def _evaluation(evaluation: Evaluation, now: float, *, reserved: bool) -> EvaluationStatus:
    return EvaluationStatus(
        version=evaluation.version,
        prompts=evaluation.prompts,
        graded=len(evaluation.graded),
        failed=evaluation.failed,
        running=evaluation.running,
        seconds=now - evaluation.began,
        reserved=reserved,
    )


def _wait(wait: Wait, now: float) -> WaitStatus:
    return WaitStatus(call=wait.call, of=wait.of, seconds=now - wait.since, deadline_s=wait.deadline_s)


def _oldest(ctx: RunContext, leases: Iterable[Lease]) -> int | None:
    versions = [
        segment.version
        for lease in leases
        for sample in lease.finished_receipt.samples
        for segment in sample.segments[:1]
    ]
    return ctx.trained - min(versions) if versions else None


def _scaled(events: Iterable[Incident | Scaled]) -> str:
    changes = [event for event in events if isinstance(event, Scaled)]
    return str(changes[-1]) if changes else ""


def _throughput(ctx: RunContext) -> dict[str, float]:
    last = ctx.steps[-1].record.metrics if ctx.steps else {}
    return {name: last[metric] for metric, name in _THROUGHPUT.items() if metric in last}
