"""From the names in the job to open ports: what the backend hosts, and what opens beside the controller."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar, cast

import msgspec

from conductor.bounded import bounded, bounded_backend
from conductor.config import RunConfig
from conductor.core.evaluation import evaluations_prefix
from conductor.core.staleness import SAMPLERS, Policy, Sampler
from conductor.core.waits import Waits
from conductor.fleet.group import member_specs, open_group
from conductor.ports import EvaluationPorts, Ports, Workloads
from conductor.validation import find_remainder_problem, site_of
from protocols.adapters import Host, load_object, resolve
from protocols.backend import Backend, Resources
from protocols.errors import ConfigError, InvariantError, Problem
from protocols.grading import GraderPort
from protocols.inference import EnginePort, InferenceControllerPort
from protocols.ledger import LedgerPort
from protocols.messages import WorkerId
from protocols.prompts import PromptSourcePort
from protocols.rollouts import RolloutExecutorPort
from protocols.sections import Section, Site
from protocols.tracking import TrackerPort
from protocols.training import TrainerPort
from protocols.wire import client

P = TypeVar("P")

_OPEN_POOL = "backends.engines.pool:open_pool"
_RESERVED = "backends.engines._reserved:ReservedEngines"
_OF_PUBLISH = 0.9  # of its deadline, for the engines: the pool's own verdict, which tells of each, comes first


@asynccontextmanager
async def open_ports(
    cfg: RunConfig, *, backend: Backend | None, workloads: Workloads, waits: Waits, resume: bool = False
) -> AsyncGenerator[Ports]:
    """Open everything that the job names and the caller did not bring, and close it in the reverse order.

    Every port given is bounded by the job's deadlines.

    Args:
        cfg: A job without problems.
        backend: Where workloads are hosted; None opens the job's.
        workloads: What the caller brings; it stays the caller's to close.
        waits: Where the calls of the ports are noted while they are open.
        resume: Whether the run goes on with what its folder holds, if it holds one.

    Raises:
        ConfigError: The prompts show that the job could never train; found before anything heavy is opened.
        ConductorError: Something could not be opened; nothing of it remains.
    """
    site = site_of(cfg, resume=resume)
    async with AsyncExitStack() as stack:
        home = backend or await stack.enter_async_context(_open_backend(cfg.backend, site))
        bounded_home = bounded_backend(home, cfg.deadlines, waits)
        opener = _Opener(cfg, site, home, stack, waits)
        prompts = opener.bound(PromptSourcePort, workloads.prompts or await opener.beside("prompts", cfg.prompts))
        if problem := find_remainder_problem(cfg, await prompts.epoch_length()):
            raise ConfigError([problem])
        evaluation = await _evaluation_prompts(cfg, workloads, opener)
        ledger = opener.bound(LedgerPort, workloads.ledger or await opener.beside("ledger", cfg.ledger_section))
        trackers = workloads.trackers
        if trackers is None:
            trackers = tuple([await opener.beside("tracker", section) for section in cfg.trackers])
        trainer = workloads.trainer or await opener.host(TrainerPort, "policy", "train", cfg.train)
        engines, reserved = (workloads.inference, None) if workloads.inference else await opener.engines()
        inference = opener.bound(InferenceControllerPort, engines)
        await bounded_home.launcher.serve(await inference.endpoint(), inference)
        executor = workloads.executor or await opener.host(RolloutExecutorPort, "episode", "episode", cfg.episode)
        grader = opener.bound(
            GraderPort, workloads.grader or await opener.host(GraderPort, "reward", "reward", cfg.reward)
        )
        yield Ports(
            backend=bounded_home,
            prompts=prompts,
            executor=opener.bound(RolloutExecutorPort, executor),
            inference=inference,
            grader=grader,
            trainer=opener.bound(TrainerPort, trainer),
            ledger=ledger,
            trackers=tuple(opener.bound(TrackerPort, tracker) for tracker in trackers),
            evaluation=await _evaluation_ports(opener, workloads, evaluation, grader, reserved),
        )


async def _evaluation_prompts(cfg: RunConfig, workloads: Workloads, opener: "_Opener") -> PromptSourcePort | None:
    if cfg.evaluation is None:
        return None
    source = workloads.evaluation_prompts or await opener.beside("prompts", cfg.evaluation.prompts)
    prompts = opener.bound(PromptSourcePort, source)
    if cfg.evaluation.size is None and await prompts.epoch_length() is None:
        why, mend = "its prompts know no epoch, so there is no end to them", "say how many are to be drawn"
        raise ConfigError([Problem(field="evaluation.size", value=None, why=why, mend=mend)])
    return prompts


async def _evaluation_ports(
    opener: "_Opener",
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
        own = await opener.host(GraderPort, "evaluation", "reward", evaluation.reward)
    return EvaluationPorts(
        prompts=prompts,
        grader=grader if own is None else opener.bound(GraderPort, own),
        inference=None if reserved is None else opener.bound(InferenceControllerPort, reserved),
    )


def _open_backend(section: Section, site: Site) -> AbstractAsyncContextManager[Backend]:
    adapter = resolve("backend", section.kind, site.job_dir)
    return adapter.open(msgspec.convert(section.options, adapter.Config), site)


class _Opener:
    """Opens adapters into one exit stack."""

    def __init__(self, cfg: RunConfig, site: Site, backend: Backend, stack: AsyncExitStack, waits: Waits) -> None:
        self.cfg = cfg
        self._site = site
        self._backend = backend
        self._stack = stack
        self._waits = waits

    def bound(self, port: type[P], implementation: P) -> P:
        """Bound every call of a port."""
        return bounded(port, implementation, self.cfg.deadlines, self._waits)

    async def host(self, port: type[P], role: str, section: str, adapter: Section | None) -> P:
        """Launch a role's only worker on the backend and return its port."""
        (member,) = await self._launch(role, section, adapter)
        return client(port, self._caller(member))

    async def engines(self) -> tuple[InferenceControllerPort, InferenceControllerPort | None]:
        """Launch the engines; return the controller of all requests, and that of the last engines where these evaluate.

        None: they are not reserved for that.
        """
        members = await self._launch("rollout", "engine", self.cfg.engine, count=self.cfg.engines)
        training = len(members) - self.cfg.reserved_engines
        pool = await self._pool(members[:training])
        if training == len(members):
            return pool, None
        reserved = await self._pool(members[training:])
        route: Callable[..., InferenceControllerPort] = load_object(_RESERVED, "")
        return route(pool, reserved, prefix=evaluations_prefix(self.cfg.registration)), reserved

    async def _pool(self, members: tuple[WorkerId, ...]) -> InferenceControllerPort:
        """Open the controller of some engines."""
        engines = {member: client(EnginePort, self._caller(member)) for member in members}
        open_pool: Callable[..., AbstractAsyncContextManager[InferenceControllerPort]] = load_object(_OPEN_POOL, "")
        answer_s = self.cfg.deadlines.abort / 2  # one silent engine must not use up the deadline
        publish_s = self.cfg.deadlines.publish * _OF_PUBLISH
        pool = open_pool(engines, mode=self.cfg.publish, answer_s=answer_s, publish_s=publish_s)
        return await self._stack.enter_async_context(pool)

    async def beside(self, section: str, adapter: Section | None) -> Any:
        """Open an adapter in the controller's own process; its type is what the section promises."""
        named = _required(section, adapter)
        found = resolve(section, named.kind, self._site.job_dir)
        host = Host(site=self._site, payloads=self._backend.payloads)
        return await self._stack.enter_async_context(found.open(msgspec.convert(named.options, found.Config), host))

    async def _launch(
        self, role: str, section: str, adapter: Section | None, *, count: int = 1
    ) -> tuple[WorkerId, ...]:
        group = await self._stack.enter_async_context(
            open_group(
                member_specs(role, section, _required(section, adapter), self._site, count=count),
                bounded_backend(self._backend, self.cfg.deadlines, self._waits),
                resources=Resources(),
                stop_s=self.cfg.deadlines.abort,
            )
        )
        return group.members

    def _caller(self, member: WorkerId) -> Callable[[str, tuple[Any, ...]], Any]:
        async def send(method: str, args: tuple[Any, ...]) -> Any:
            return await self._backend.launcher.call(member, method, args)

        return send


def _required(section: str, adapter: Section | None) -> Section:
    if adapter is None:
        raise InvariantError(f"[{section}] is missing and validation let it pass")
    return adapter


def sampler_of(cfg: RunConfig) -> Sampler:
    """Return the sampler that the job names, or load the user's own: a function of ``max_age`` and ``batch_groups``."""
    if cfg.staleness in SAMPLERS:
        return SAMPLERS[cast("Policy", cfg.staleness)](cfg.max_age, cfg.batch_groups)
    make: Callable[[float, int], Sampler] = load_object(cfg.staleness, site_of(cfg).job_dir)
    return make(cfg.max_age, cfg.batch_groups)
