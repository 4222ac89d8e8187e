"""From the names in the job to open ports: what the backend hosts, and what opens beside the controller."""

from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, Protocol, TypeVar, cast

import msgspec

from conductor.bounded import bounded, bounded_backend
from conductor.bounds import find_capacity_problems
from conductor.config import RunConfig
from conductor.core.evaluation import evaluations_prefix
from conductor.core.planning.wishes import EPISODE, EVALUATION, POLICY, REWARD, ROLES, ROLLOUT
from conductor.core.staleness import SAMPLERS, Policy, Sampler
from conductor.core.waits import Waits
from conductor.fleet.attendance import Attendance
from conductor.fleet.budget import Budget
from conductor.fleet.failover import Failover, Probe
from conductor.fleet.group import open_group
from conductor.fleet.moving import Fleet, Mover
from conductor.fleet.planned import planned, write_plan
from conductor.fleet.pools import Pool, drainer, either
from conductor.fleet.reservation import Reservations, open_reservations
from conductor.fleet.roles import RoleDesk, carrier
from conductor.fleet.scaling import Hold, Scaler
from conductor.fleet.spread import Executors, Graders
from conductor.ports import EvaluationPorts, Ports, Workloads
from conductor.validation import find_remainder_problem, site_of
from protocols.adapters import Host, load_object, resolve
from protocols.backend import Backend
from protocols.errors import ConfigError, InvariantError, Problem, WorkerLost
from protocols.fleet import Plan
from protocols.grading import GraderPort
from protocols.inference import EnginePort, InferenceControllerPort
from protocols.ledger import LedgerPort
from protocols.messages import WorkerId
from protocols.prompts import PromptSourcePort
from protocols.rollouts import RolloutExecutorPort
from protocols.sections import Section, Site
from protocols.tracking import TrackerPort
from protocols.training import RankPort, TrainerPort
from protocols.wire import client

P = TypeVar("P")

_RANKS = "backends.trainers.data_parallel:DataParallel"
_OPEN_POOL = "backends.engines.pool:open_pool"
_RESERVED = "backends.engines._reserved:ReservedEngines"
_OF_PUBLISH = 0.9  # of its deadline, for the engines: the pool's own verdict, which tells of each, comes first


@asynccontextmanager
async def open_ports(
    cfg: RunConfig,
    *,
    backend: Backend | None,
    workloads: Workloads,
    waits: Waits,
    resume: bool = False,
    plan: Plan | None = None,
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
        fleet = planned(cfg, inventory, workloads.sections(), plan)
        opener = _Opener(
            cfg,
            site,
            backend=home,
            bounded_home=bounded_home,
            fleet=fleet,
            given=workloads.sections(),
            stack=stack,
            waits=waits,
            at_once=inventory.own_processes,
        )
        prompts = opener.bound(PromptSourcePort, workloads.prompts or await opener.beside("prompts", cfg.prompts))
        if problem := find_remainder_problem(cfg, await prompts.epoch_length()):
            raise ConfigError([problem])
        evaluation = await _evaluation_prompts(cfg, workloads, opener)
        ledger = opener.bound(LedgerPort, workloads.ledger or await opener.beside("ledger", cfg.ledger_section))
        trackers = await _trackers(cfg, workloads, opener)
        await write_plan(fleet, cfg)
        stack.enter_context(opener.roles.open())
        await opener.prepare()
        trainer = workloads.trainer or await opener.trainer()
        engines, reserved = (workloads.inference, None) if workloads.inference else await opener.engines()
        inference = opener.bound(InferenceControllerPort, engines)
        await bounded_home.launcher.serve(await inference.endpoint(), inference)
        executor = workloads.executor or await opener.several(RolloutExecutorPort, EPISODE, Executors)
        grader = opener.bound(GraderPort, workloads.grader or await opener.several(GraderPort, REWARD, Graders))
        yield Ports(
            backend=bounded_home,
            prompts=prompts,
            executor=opener.bound(RolloutExecutorPort, executor),
            inference=inference,
            grader=grader,
            trainer=opener.bound(TrainerPort, trainer),
            ledger=ledger,
            trackers=trackers,
            evaluation=await _evaluation_ports(opener, workloads, evaluation, grader, reserved),
            failovers=tuple(opener.failovers),
            scaler=opener.scaler,
        )


async def _trackers(cfg: RunConfig, workloads: Workloads, opener: "_Opener") -> tuple[TrackerPort, ...]:
    trackers = workloads.trackers
    if trackers is None:
        trackers = tuple([await opener.beside("tracker", section) for section in cfg.trackers])
    return tuple(opener.bound(TrackerPort, tracker) for tracker in trackers)


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


class _Ranks(TrainerPort, Protocol):
    async def meet(self) -> None: ...

    def replaced(self, worker: WorkerId) -> None: ...


class _Pool(InferenceControllerPort, Pool, Protocol): ...


class _Opener:
    """Opens adapters into one exit stack, and the workers of a plan into groups on it.

    Args:
        cfg: The job; site: its facts.
        backend: Hosts the workers, whose calls are bounded by their own ports; ``bounded_home`` is the same, bounded.
        fleet: Where each worker runs.
        stack: Closes what was opened.
        waits: Where open calls are noted.
        at_once: Whether the workers of a role are launched at once.

    Attributes:
        failovers: Of every role that was launched.
        scaler: Changes the number of engines; None: none were launched.
        roles: How workers reach one another.
    """

    _reservations: Reservations
    _mover: Mover

    def __init__(
        self,
        cfg: RunConfig,
        site: Site,
        *,
        backend: Backend,
        bounded_home: Backend,
        fleet: Plan,
        given: Collection[str],
        stack: AsyncExitStack,
        waits: Waits,
        at_once: bool,
    ) -> None:
        self.cfg = cfg
        self._site = site
        self._backend = backend
        self._bounded = bounded_home
        self._fleet, self._now = fleet, Fleet(plan=fleet)
        self._stack = stack
        self._waits = waits
        self._at_once = at_once
        self._given = given
        self.failovers: list[Failover] = []
        self.scaler: Scaler | None = None
        self._budget = Budget(0.0)  # begun by ``prepare``
        self.roles = RoleDesk(cfg.fleet.queues, patience_s=cfg.deadlines.start)

    def bound(self, port: type[P], implementation: P) -> P:
        """Bound every call of a port."""
        return bounded(port, implementation, self.cfg.deadlines, self._waits)

    async def prepare(self) -> None:
        """Hold all that the plan needs, and launch the user's own roles: the others may need them."""
        bundles, placement = self._fleet.bundles, self._bounded.placement
        await self._bounded.launcher.serve_roles(self.roles)
        self._budget = self._make_budget()
        with self._budget.phase(f"the reservation of {', '.join(bundle.name for bundle in bundles)}"):
            held = open_reservations(bundles, placement, stop_s=self.cfg.deadlines.abort)
            self._reservations = await self._stack.enter_async_context(held)
        self._mover = Mover(self._now, self.cfg, self._given, placement=placement, reservations=self._reservations)
        for role in self._fleet.roles:
            if role.name not in ROLES:
                await self.launch(role.name)

    def _make_budget(self) -> Budget:
        """Begin the time of the start: one ``deadlines.start`` for each launch that waits for the one before it."""
        launches = len(self._fleet.roles) if self._at_once else len(self._fleet.vertices)
        return Budget(self.cfg.deadlines.start * max(1, launches))

    async def launch(self, role: str, probe: Probe | None = None) -> Failover:
        """Launch a role's workers; returns what brings back those that are lost."""
        vertices, deadlines = self._fleet.workers(role), self.cfg.deadlines
        if not vertices:
            raise InvariantError(f"the plan has no worker of the role {role}, and validation let it pass")
        attendance = Attendance()
        self._let_call(role, attendance)
        group = await self._stack.enter_async_context(
            open_group(
                vertices,
                self._bounded.launcher,
                self._site,
                start_s=self._budget.left_s,
                stop_s=deadlines.abort,
                at_once=self._at_once,
            )
        )
        planned_role, answer_s = self._fleet.role(role), self._answer_s
        failover = Failover(
            planned_role, group, attendance=attendance, holds_state=role == POLICY, probe=probe, answer_s=answer_s
        )
        if role != POLICY:  # ranks meet on one node
            failover.move = partial(self._mover.move, group)
        self.failovers.append(failover)
        return failover

    def _let_call(self, role: str, attendance: Attendance) -> None:
        """Let the workers of a role be called by others; not those that the controller has to itself."""
        ranked = sorted(self._fleet.workers(role), key=lambda vertex: vertex.ranks.role)
        members = tuple(vertex.name for vertex in ranked)

        async def send(member: WorkerId, method: str, args: tuple[Any, ...]) -> Any:
            try:
                return await self._backend.launcher.call(member, method, args)
            except WorkerLost:
                tending = [one for one in self.failovers if one.attendance is attendance]
                for leave in (one.suspect for one in tending) if tending else (attendance.leave,):
                    leave(member)
                raise

        if (call := carrier(role, send)) is not None:
            self.roles.add(role, members, call, attendance)

    async def trainer(self) -> TrainerPort:
        """Launch what trains the policy: one worker, or ranks that are one trainer together."""
        failover = await self.launch(POLICY)
        if len(failover.members) == 1:
            return self._clients(TrainerPort, failover, waits=True)[failover.members[0]]
        make: Callable[..., _Ranks] = load_object(_RANKS, "")
        ranks = make(self._clients(RankPort, failover), revive=failover.restored)
        failover.replaced = ranks.replaced
        with self._budget.phase(f"the rendezvous of {', '.join(failover.members)}"):
            await ranks.meet()
        return ranks

    async def several(self, port: type[P], role: str, spread: Callable[[Mapping[WorkerId, P], Attendance], P]) -> P:
        """Launch a role's workers and return one port over all of them."""
        failover = await self.launch(role)
        return spread(self._clients(port, failover), failover.attendance)

    async def engines(self) -> tuple[InferenceControllerPort, InferenceControllerPort | None]:
        """Launch the engines; return the controller of all requests, and that of the last engines where these evaluate.

        None: they are not reserved for that.
        """
        launcher = self._backend.launcher
        failover = await self.launch(ROLLOUT, lambda member: launcher.call(member, "status", ()))
        engines = self._clients(EnginePort, failover)
        training = failover.members[: len(engines) - self.cfg.reserved_engines]
        evaluating = frozenset(engines).difference(training)
        pool = await self._pool({member: engines[member] for member in training})
        drain_s = self.cfg.deadlines.publish / 2
        failover.replaced, failover.drain = pool.replaced, drainer(pool, within_s=drain_s)
        self.scaler = self._scaler(failover, pool, evaluating)
        if not evaluating:
            return pool, None
        reserved = await self._pool({member: engine for member, engine in engines.items() if member in evaluating})
        failover.replaced = either(evaluating, reserved, pool)
        failover.drain = drainer(pool, reserved, within_s=drain_s)
        route: Callable[..., InferenceControllerPort] = load_object(_RESERVED, "")
        return route(pool, reserved, prefix=evaluations_prefix(self.cfg.registration)), reserved

    def _scaler(self, failover: Failover, pool: Pool, reserved: frozenset[WorkerId]) -> Scaler:
        """Return what changes the number of engines; it holds what is opened already."""
        hold = Hold(
            failover=failover,
            pool=pool,
            reserved=reserved,
            client=lambda member: client(EnginePort, self._caller(member, failover, waits=False)),
            reservations=self._reservations,
            placement=self._bounded.placement,
        )

        def problems_at(size: int) -> Iterable[Problem]:
            fields = msgspec.structs.asdict(msgspec.structs.replace(self.cfg, engines=size))
            return find_capacity_problems(fields, self._site.job_dir)

        return Scaler(self._now, self.cfg, self._given, hold=hold, problems_at=problems_at)

    async def _pool(self, engines: Mapping[WorkerId, EnginePort]) -> "_Pool":
        """Open the controller of some engines."""
        open_pool: Callable[..., AbstractAsyncContextManager[_Pool]] = load_object(_OPEN_POOL, "")
        publish_s = self.cfg.deadlines.publish * _OF_PUBLISH
        pool = open_pool(engines, mode=self.cfg.publish, answer_s=self._answer_s, publish_s=publish_s)
        return await self._stack.enter_async_context(pool)

    async def beside(self, section: str, adapter: Section | None) -> Any:
        """Open an adapter in the controller's own process; its type is what the section promises."""
        named = _required(section, adapter)
        found = resolve(section, named.kind, self._site.job_dir)
        host = Host(site=self._site, payloads=self._backend.payloads)
        return await self._stack.enter_async_context(found.open(msgspec.convert(named.options, found.Config), host))

    @property
    def _answer_s(self) -> float:
        """What a worker that does not answer may take of an abort's deadline."""
        return self.cfg.deadlines.abort / 2

    def _clients(self, port: type[P], failover: Failover, *, waits: bool = False) -> dict[WorkerId, P]:
        return {member: client(port, self._caller(member, failover, waits=waits)) for member in failover.members}

    def _caller(self, member: WorkerId, failover: Failover, *, waits: bool) -> Callable[[str, tuple[Any, ...]], Any]:
        """Return what carries calls to a worker, whatever process that is by then.

        ``waits``: tell of its loss only after it was decided what becomes of the run.
        """

        async def send(method: str, args: tuple[Any, ...]) -> Any:
            try:
                return await self._backend.launcher.call(member, method, args)
            except WorkerLost as exc:
                loss = exc
            failover.suspect(member)
            if waits:
                await failover.restored(member, loss)
            raise loss

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
