"""From the names in the job to open ports: what the backend hosts, and what opens beside the controller."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
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
from conductor.ports import EvaluationPorts, Ports, Workloads
from conductor.resuming import aside_of
from conductor.validation import find_remainder_problem, site_of
from protocols.adapters import load_object, resolve
from protocols.backend import Backend
from protocols.errors import ConfigError, Problem
from protocols.fleet import Plan
from protocols.grading import GraderPort
from protocols.inference import InferenceControllerPort
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
            could never train; found before anything heavy is opened.
        ConductorError: Something could not be opened; nothing of it remains.
    """
    site = site_of(cfg, resume=resume)
    async with AsyncExitStack() as stack:
        home = backend or await stack.enter_async_context(open_backend(cfg.backend, site))
        bounded_home = bounded_backend(home, cfg.deadlines, waits)
        inventory = await bounded_home.placement.inventory()
        quarantine = quarantine or Quarantine()
        opener = Opener(
            cfg,
            site,
            backend=home,
            bounded_home=bounded_home,
            given=workloads.sections(),
            stack=stack,
            waits=waits,
            at_once=inventory.own_processes,
            quarantine=quarantine,
            hooks=hooks or Hooks((), patience_s=0.0, log=log),
            log=log,
        )
        ledger = await opener.ledger(workloads) if resume else None
        if ledger is not None:
            quarantine.recall(aside_of(await ledger.replay()), now=anyio.current_time())
        aside = quarantine.aside(anyio.current_time())
        plan = planned(cfg, inventory, workloads.sections(), plan, aside)
        prompts = opener.bound(PromptSourcePort, workloads.prompts or await opener.beside("prompts", cfg.prompts))
        if problem := find_remainder_problem(cfg, await prompts.epoch_length()):
            raise ConfigError([problem])
        evaluation = await _evaluation_prompts(cfg, workloads, opener)
        ledger = ledger or await opener.ledger(workloads)
        trackers = await _trackers(cfg, workloads, opener)
        await write_plan(plan, cfg)
        stack.enter_context(opener.roles.open())
        await opener.prepare(plan)
        trainer = workloads.trainer or await opener.trainer()
        engines, reserved = (workloads.inference, None) if workloads.inference else await opener.engines()
        inference = opener.bound(InferenceControllerPort, engines)
        await bounded_home.launcher.serve(await inference.endpoint(), inference)
        executor = workloads.executor or await opener.several(RolloutExecutorPort, EPISODE, Executors)
        grader = opener.bound(GraderPort, workloads.grader or await opener.several(GraderPort, REWARD, Graders))
        evaluation_ports = await _evaluation_ports(opener, workloads, evaluation, grader, reserved)
        for group in opener.groups:
            await opener.hooks.started(group)
        yield Ports(
            backend=bounded_home,
            prompts=prompts,
            executor=opener.bound(RolloutExecutorPort, executor),
            inference=inference,
            grader=grader,
            trainer=opener.bound(TrainerPort, trainer),
            ledger=ledger,
            trackers=trackers,
            evaluation=evaluation_ports,
            failovers=tuple(opener.failovers),
            scaler=opener.scaler,
            quarantine=quarantine,
            lose=opener.mover.lose,
            incidents=tuple(opener.incidents),
            told=opener.hooks.failed_over,
        )


async def _trackers(cfg: RunConfig, workloads: Workloads, opener: Opener) -> tuple[TrackerPort, ...]:
    trackers = workloads.trackers
    if trackers is None:
        trackers = tuple([await opener.beside("tracker", section) for section in cfg.trackers])
    return tuple(opener.bound(TrackerPort, tracker) for tracker in trackers)


async def _evaluation_prompts(cfg: RunConfig, workloads: Workloads, opener: Opener) -> PromptSourcePort | None:
    if cfg.evaluation is None:
        return None
    source = workloads.evaluation_prompts or await opener.beside("prompts", cfg.evaluation.prompts)
    prompts = opener.bound(PromptSourcePort, source)
    if cfg.evaluation.size is None and await prompts.epoch_length() is None:
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
