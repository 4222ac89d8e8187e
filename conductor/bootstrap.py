"""From the names in the job to open ports: what the backend hosts, and what opens beside the controller."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import cast

import anyio
import msgspec
from structlog.typing import FilteringBoundLogger

from conductor.bounded import bounded_backend
from conductor.config import RunConfig
from conductor.core.planning.wishes import EPISODE, EVALUATION, REWARD
from conductor.core.quarantine import Quarantine
from conductor.core.staleness import SAMPLERS, Policy, Sampler
from conductor.core.waits import Waits
from conductor.fleet.hooks import Hooks
from conductor.fleet.planned import planned, write_plan
from conductor.fleet.spread import Executors, Graders
from conductor.opening import Opener
from conductor.past import Past, read_past
from conductor.ports import EvaluationPorts, Ports, Workloads
from conductor.resuming import refuse_changes
from conductor.validation import find_remainder_problem, site_of
from protocols.adapters import load_object, resolve
from protocols.backend import Backend
from protocols.errors import ConfigError, Problem, UserError
from protocols.fleet import Plan
from protocols.grading import GraderPort
from protocols.inference import InferenceControllerPort
from protocols.ledger import LedgerPort
from protocols.prompts import PromptSourcePort
from protocols.rollouts import RolloutExecutorPort
from protocols.sections import Section, Site
from protocols.tracking import TrackerPort
from protocols.training import TrainerPort


@asynccontextmanager
async def open_ports(
    cfg: RunConfig,
    *,
    backend: Backend | None,
    workloads: Workloads,
    waits: Waits,
    resume: bool = False,
    plan: Plan | None = None,
    quarantine: Quarantine | None = None,
    hooks: Hooks | None = None,
    log: FilteringBoundLogger,
) -> AsyncGenerator[Ports]:
    """Open everything that the job names and the caller did not bring, and close it in the reverse order.

    Every port given is bounded by the job's deadlines.

    Args:
        cfg: A job without problems.
        backend: Where workloads are hosted; None opens the job's.
        workloads: What the caller brings; it stays the caller's to close.
        waits: Where the calls of the ports are noted while they are open.
        resume: Whether the run goes on with what its folder holds, if it holds one.
        plan: Where the workers run; None: made here, of what the backend has.
        quarantine: What earlier lives of the run, in this process, have set aside.
        hooks: Are told of the worker groups.
        log: Is told what happens while the workers are launched.

    Raises:
        ConfigError: The workers find no place, or the plan is none for this job, or the prompts show that the job
            could never train, or a resumed run began with another job or other data; found before anything heavy is
            opened.
        UserError: The record holds a run, and none was to be resumed; found as early.
        CorruptLedger: The record is damaged, or contradicts itself.
        ConductorError: Something could not be opened; nothing of it remains.
    """
    site = site_of(cfg, resume=resume)
    async with AsyncExitStack() as stack:
        home = backend or await stack.enter_async_context(open_backend(cfg.backend, site))
        bounded_home = bounded_backend(home, cfg.deadlines, waits)
        inventory = await bounded_home.placement.inventory()
        opener = Opener(
            cfg,
            site,
            backend=home,
            bounded_home=bounded_home,
            given=workloads.sections(),
            stack=stack,
            waits=waits,
            at_once=inventory.own_processes,
            quarantine=quarantine or Quarantine(),
            hooks=hooks or Hooks((), patience_s=0.0, log=log),
            log=log,
        )
        record = await _open_record(opener, workloads) if resume else None
        if record is not None and record.past is not None:
            opener.quarantine.recall(record.past.aside, now=anyio.current_time())
        aside = opener.quarantine.aside(anyio.current_time())
        plan = planned(cfg, inventory, workloads.sections(), plan, aside)
        beside = await _open_beside(opener, workloads, record)
        await write_plan(plan, cfg)
        await opener.prepare(plan)
        yield await _launch(opener, workloads, beside)


@dataclass(frozen=True, kw_only=True)
class _Record:
    """The record of the run, and what it told when it was read."""

    ledger: LedgerPort
    past: Past | None


@dataclass(frozen=True, kw_only=True)
class _Beside:
    """What is open in the controller's own process: nothing of it is heavy."""

    record: _Record
    prompts: PromptSourcePort
    evaluation_prompts: PromptSourcePort | None
    trackers: tuple[TrackerPort, ...]


async def _open_record(opener: Opener, workloads: Workloads) -> _Record:
    ledger = opener.bound(LedgerPort, workloads.ledger or await opener.beside("ledger", opener.cfg.ledger_section))
    return _Record(ledger=ledger, past=await read_past(ledger))


async def _open_beside(opener: Opener, workloads: Workloads, resumed: _Record | None) -> _Beside:
    """Open what needs no worker; the record of a run that begins comes late, for it leaves a file."""
    cfg = opener.cfg
    prompts = opener.bound(PromptSourcePort, workloads.prompts or await opener.beside("prompts", cfg.prompts))
    if problem := find_remainder_problem(cfg, await prompts.epoch_length()):
        raise ConfigError([problem])
    evaluation_prompts = await _evaluation_prompts(opener, workloads)
    record = resumed or await _open_record(opener, workloads)
    if record.past is not None and resumed is None:
        raise UserError("the ledger holds the record of a run; resume that run, or begin this one with an empty ledger")
    if record.past is not None:
        await refuse_changes(cfg, prompts, record.past.origin)
    trackers = await _trackers(opener, workloads)
    return _Beside(record=record, prompts=prompts, evaluation_prompts=evaluation_prompts, trackers=trackers)


async def _launch(opener: Opener, workloads: Workloads, beside: _Beside) -> Ports:
    """Launch the workers of a plan that is prepared; the engines last but for those that need them."""
    trainer = workloads.trainer or await opener.trainer()
    engines, reserved = (workloads.inference, None) if workloads.inference else await opener.engines()
    inference = opener.bound(InferenceControllerPort, engines)
    await opener.home.launcher.serve(await inference.endpoint(), inference)
    executor = workloads.executor or await opener.several(RolloutExecutorPort, EPISODE, Executors)
    grader = opener.bound(GraderPort, workloads.grader or await opener.several(GraderPort, REWARD, Graders))
    evaluation = await _evaluation_ports(opener, workloads, beside.evaluation_prompts, grader, reserved)
    for group in opener.groups:
        await opener.hooks.started(group)
    return Ports(
        backend=opener.home,
        prompts=beside.prompts,
        executor=opener.bound(RolloutExecutorPort, executor),
        inference=inference,
        grader=grader,
        trainer=opener.bound(TrainerPort, trainer),
        ledger=beside.record.ledger,
        past=beside.record.past,
        trackers=beside.trackers,
        evaluation=evaluation,
        failovers=tuple(opener.failovers),
        scaler=opener.scaler,
        quarantine=opener.quarantine,
        lose=opener.mover.lose,
        incidents=tuple(opener.incidents),
        told=opener.hooks.failed_over,
    )


async def _trackers(opener: Opener, workloads: Workloads) -> tuple[TrackerPort, ...]:
    trackers = workloads.trackers
    if trackers is None:
        trackers = tuple([await opener.beside("tracker", section) for section in opener.cfg.trackers])
    return tuple(opener.bound(TrackerPort, tracker) for tracker in trackers)


async def _evaluation_prompts(opener: Opener, workloads: Workloads) -> PromptSourcePort | None:
    evaluation = opener.cfg.evaluation
    if evaluation is None:
        return None
    source = workloads.evaluation_prompts or await opener.beside("prompts", evaluation.prompts)
    prompts = opener.bound(PromptSourcePort, source)
    if evaluation.size is None and await prompts.epoch_length() is None:
        why, mend = "its prompts know no epoch, so there is no end to them", "say how many are to be drawn"
        raise ConfigError([Problem(field="evaluation.size", value=None, why=why, mend=mend)])
    return prompts


async def _evaluation_ports(
    opener: Opener,
    workloads: Workloads,
    prompts: PromptSourcePort | None,
    grader: GraderPort,
    reserved: InferenceControllerPort | None,
) -> EvaluationPorts | None:
    evaluation = opener.cfg.evaluation
    if evaluation is None or prompts is None:
        return None
    own = workloads.evaluation_grader
    if own is None and evaluation.reward is not None:
        own = await opener.several(GraderPort, EVALUATION, Graders)
    return EvaluationPorts(
        prompts=prompts,
        grader=grader if own is None else opener.bound(GraderPort, own),
        inference=None if reserved is None else opener.bound(InferenceControllerPort, reserved),
    )


def open_backend(section: Section, site: Site) -> AbstractAsyncContextManager[Backend]:
    """Return the backend that a section names, not open yet."""
    adapter = resolve("backend", section.kind, site.job_dir)
    return adapter.open(msgspec.convert(section.options, adapter.Config), site)


def sampler_of(cfg: RunConfig) -> Sampler:
    """Return the sampler that the job names, or load the user's own: a function of ``max_age`` and ``batch_groups``."""
    if cfg.staleness in SAMPLERS:
        return SAMPLERS[cast("Policy", cfg.staleness)](cfg.max_age, cfg.batch_groups)
    make: Callable[[float, int], Sampler] = load_object(cfg.staleness, site_of(cfg).job_dir)
    return make(cfg.max_age, cfg.batch_groups)
