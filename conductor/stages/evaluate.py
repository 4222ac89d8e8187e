"""Evaluate: the weights that the engines serve, on prompts of their own, beside the training.

An evaluation is pinned to a version: who publishes runs it, and so publishes nothing meanwhile. Where engines are
reserved for it this is a stage: versions served in; it keeps the weights, lets the reserved engines load them, and
nobody waits.

It is in none of the run's accounts and leases nothing; its requests stand under ``E<version>/`` and are aborted like
others. What fails in it is counted, unless the job says otherwise; only what proves us wrong ends the run.
"""

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream

from conductor.abort import end
from conductor.bounded import within
from conductor.context import RunContext
from conductor.core.evaluation import (
    Evaluation,
    check_receipt,
    evaluation_id,
    evaluation_prefix,
    evaluation_seed,
)
from conductor.grading import grades_of
from conductor.keeping import release_held
from conductor.observe.metrics import evaluation_metrics
from conductor.patience import release
from conductor.ports import EvaluationPorts
from protocols.errors import (
    Aborted,
    CorruptLedger,
    DataFault,
    DeadlineExceeded,
    InvariantError,
    PortFailed,
    Transient,
    UserError,
)
from protocols.grading import Grade, GradeFault
from protocols.ledger import Evaluated
from protocols.messages import WeightVersion
from protocols.pauses import pause_s
from protocols.prompts import Prompt
from protocols.rollouts import GroupReceipt, RolloutLease
from protocols.tracking import StepRecord

_OURS = (InvariantError, CorruptLedger)


async def run(ctx: RunContext, served: MemoryObjectReceiveStream[WeightVersion]) -> None:
    """Evaluate what is served on engines of its own, the newest when the last evaluation is done, if it is due."""
    async for _ in served:
        await evaluate_if_due(ctx)


async def draw_prompts(ctx: RunContext) -> None:
    """Draw the prompts of every evaluation of the run: the first ones of their source.

    Raises:
        UserError: There are none.
    """
    evaluation, ports = ctx.cfg.evaluation, ctx.ports.evaluation
    if evaluation is None or ports is None:
        return
    wanted = evaluation.size or await ports.prompts.epoch_length() or 0
    prompts: list[Prompt] = []
    for _ in range(wanted):
        try:
            prompt = await ports.prompts.draw()
        except DataFault as exc:
            ctx.log.warning("prompt.skipped", of="evaluation", error=str(exc))
            continue
        if prompt is None:
            break
        prompts.append(prompt)
    if not prompts:
        raise UserError("evaluation.prompts gives no prompt that can be read; the log names what is wrong with each")
    ctx.evaluation_prompts = tuple(prompts)


async def evaluate_if_due(ctx: RunContext) -> None:
    """Evaluate what the engines serve if it is due. The caller publishes nothing meanwhile."""
    served = ctx.publication.served
    if served is not None and ctx.evaluation_due(served):
        await _evaluate(ctx, served)


async def evaluate_last(ctx: RunContext) -> None:
    """Evaluate what the run ends with, unless that is done, and tell the trackers what no step told them."""
    served = ctx.publication.served
    trained = ctx.trained != ctx.first_version
    if ctx.cfg.evaluation is not None and trained and served is not None and ctx.evaluated != served:
        ctx.enter("evaluating")
        await _evaluate(ctx, served)
    if ctx.window.evaluation:
        record = StepRecord(step=ctx.trained, metrics=ctx.window.take_evaluation())
        for tracker in ctx.ports.trackers:
            await tracker.log(record)


async def _evaluate(ctx: RunContext, version: WeightVersion) -> None:
    evaluation = Evaluation(version=version, prompts=len(ctx.evaluation_prompts), began=anyio.current_time())
    ctx.evaluation, ctx.evaluated = evaluation, version  # until it is over: a run that ends aborts it
    manifest = ctx.publication.pin()
    seconds = ctx.cfg.deadlines.evaluation
    try:
        with within(ctx.waits, "evaluation", f"v{version}", seconds):
            if ctx.reserved is not None:
                await ctx.reserved.publish(manifest)
            await _play_all(ctx, evaluation)
        if evaluation.running or evaluation.waiting:
            raise InvariantError(f"the evaluation of v{version} ended and its accounts do not: {evaluation}")
    except (DeadlineExceeded, PortFailed) as exc:
        await _clear(ctx, evaluation_prefix(ctx.cfg.registration, version))
        _fail(ctx, evaluation, str(exc))
    else:
        if evaluation.graded:
            await _conclude(ctx, evaluation)
        else:
            _fail(ctx, evaluation, f"none of its {evaluation.prompts} prompts could be graded")
    ctx.evaluation = None
    if (superseded := ctx.publication.unpin()) is not None:
        await release(ctx, superseded.payload.owner)
    await release_held(ctx)


async def _conclude(ctx: RunContext, evaluation: Evaluation) -> None:
    metrics = evaluation_metrics(evaluation, seconds=anyio.current_time() - evaluation.began)
    ctx.window.evaluation = metrics
    event = Evaluated(record=StepRecord(step=evaluation.version, metrics=metrics))
    ctx.evaluations.append(event)
    ctx.log.info("evaluation.finished", step=evaluation.version, **metrics)
    await ctx.record(event)


def _fail(ctx: RunContext, evaluation: Evaluation, why: str) -> None:
    """Count an evaluation that came to nothing.

    Raises:
        PortFailed: The job wants the run to end with it.
    """
    ctx.window.failed("evaluation")
    ctx.log.error("evaluation.failed", step=evaluation.version, why=why, failed=evaluation.failed)
    ctx.evaluation = None
    if ctx.cfg.evaluation is not None and ctx.cfg.evaluation.on_failure == "fail":
        raise PortFailed(f"the evaluation of v{evaluation.version} failed: {why} (evaluation.on_failure = 'fail')")


async def _play_all(ctx: RunContext, evaluation: Evaluation) -> None:
    """Play every prompt once, at most ``evaluation.slots`` at a time."""
    left = iter(ctx.evaluation_prompts)

    async def play_on() -> None:
        for prompt in left:
            await _play(ctx, evaluation, prompt)

    slots = (ctx.cfg.evaluation and ctx.cfg.evaluation.slots) or ctx.cfg.batch_groups
    async with anyio.create_task_group() as group:
        for number in range(min(slots, evaluation.prompts)):
            ctx.start(group, f"evaluation {number}", play_on)


async def _play(ctx: RunContext, evaluation: Evaluation, prompt: Prompt) -> None:
    evaluation.running += 1
    try:
        receipt, grades = await _attempts(ctx, evaluation.version, prompt)
        evaluation.add(receipt, grades)
    except _OURS:
        raise
    except Exception as exc:  # noqa: BLE001 - whatever it is, it is a prompt of an evaluation and no more
        evaluation.failed += 1
        ctx.log.warning("evaluation.prompt_failed", position=prompt.position, error=f"{type(exc).__name__}: {exc}")
        prefix = evaluation_prefix(ctx.cfg.registration, evaluation.version)
        await _clear(ctx, f"{prefix}{prompt.position}/")
    finally:
        evaluation.running -= 1


async def _attempts(
    ctx: RunContext, version: WeightVersion, prompt: Prompt
) -> tuple[GroupReceipt, tuple[Grade | GradeFault, ...]]:
    """Generate and grade, again where it failed through no fault of the prompt."""
    ports = ctx.ports.evaluation
    if ports is None:
        raise InvariantError("an evaluation was begun without its ports")
    for attempt in range(ctx.cfg.attempts):
        lease = _lease(ctx, version, prompt, attempt)
        try:
            return await _once(ctx, ports, lease, version)
        except (Transient, Aborted) as exc:
            if attempt + 1 == ctx.cfg.attempts:
                raise
            await end(ctx, lease.prefix, lease.lease_id, type(exc).__name__)
            await anyio.sleep(pause_s(attempt + 1, lease.lease_id))
    raise InvariantError("a prompt is tried at least once")


async def _once(
    ctx: RunContext, ports: EvaluationPorts, lease: RolloutLease, version: WeightVersion
) -> tuple[GroupReceipt, tuple[Grade | GradeFault, ...]]:
    receipt = await ctx.ports.executor.generate(lease)
    check_receipt(receipt, lease, version)
    grades = await grades_of(ctx, ports.grader, lease.prompt, receipt)
    if not any(isinstance(grade, Grade) for grade in grades):
        fault = next(grade for grade in grades if isinstance(grade, GradeFault))
        raise DataFault(f"no completion has a reward: {fault.kind}: {fault.detail}")
    await release(ctx, lease.prefix)
    return receipt, grades


def _lease(ctx: RunContext, version: WeightVersion, prompt: Prompt, attempt: int) -> RolloutLease:
    evaluation = ctx.cfg.evaluation
    if evaluation is None:
        raise InvariantError("an evaluation was begun that the job does not want")
    return RolloutLease(
        lease_id=evaluation_id(version, prompt.position),
        attempt=attempt,
        registration=ctx.cfg.registration,
        prompt=prompt,
        group_size=evaluation.samples,
        sampling=evaluation.sampling or ctx.cfg.sampling,
        seed=evaluation_seed(ctx.cfg.seed),
    )


async def _clear(ctx: RunContext, prefix: str) -> None:
    """End what still runs under a prefix; where that is not confirmed in time, the run tries again at its end."""
    owed, ctx.owed = ctx.owed, True
    try:
        await end(ctx, prefix, prefix, "a failed evaluation")
    except _OURS:
        raise
    except Exception as exc:  # noqa: BLE001 - as above
        ctx.log.warning("abort.failed", prefix=prefix, error=f"{type(exc).__name__}: {exc}")
    else:
        ctx.owed = owed
