"""How the adapters of a run are opened: into one exit stack, workers into groups on it."""

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from typing import Any, Protocol, TypeVar

import anyio
import msgspec
from anyio.lowlevel import checkpoint
from structlog.typing import FilteringBoundLogger

from conductor.bounded import bounded
from conductor.bounds import find_capacity_problems
from conductor.config import RoleConfig, RunConfig
from conductor.core.evaluation import evaluations_prefix
from conductor.core.planning.wishes import POLICY, ROLES, ROLLOUT
from conductor.core.quarantine import Quarantine
from conductor.core.waits import Waits
from conductor.fleet.attendance import Attendance
from conductor.fleet.budget import Budget
from conductor.fleet.failover import Failover, Probe
from conductor.fleet.group import WorkerGroup, open_group
from conductor.fleet.hooks import Hooks
from conductor.fleet.journal import Journal
from conductor.fleet.master import Master
from conductor.fleet.moving import Fleet, Mover
from conductor.fleet.pools import Pool, drainer, either
from conductor.fleet.ranks import open_ranks
from conductor.fleet.reservation import Reservations, open_reservations
from conductor.fleet.roles import RoleDesk, carrier
from conductor.fleet.scaling import Hold, Scaler
from conductor.fleet.users import make
from protocols.adapters import Host, load_object, resolve
from protocols.backend import Backend
from protocols.errors import InvariantError, Problem, WorkerLost
from protocols.fleet import Plan, Vertex
from protocols.incidents import Incident, Scaled
from protocols.inference import EnginePort, InferenceControllerPort
from protocols.messages import WeightVersion, WorkerId
from protocols.sections import Section, Site
from protocols.training import RankPort, TrainerPort
from protocols.wire import client

P = TypeVar("P")

_OPEN_POOL = "backends.engines.pool:open_pool"
_RESERVED = "backends.engines._reserved:ReservedEngines"
_OF_PUBLISH = 0.9  # of its deadline, for the engines: the pool's own verdict, which tells of each, comes first


class _Pool(InferenceControllerPort, Pool, Protocol): ...


class Opener:
    """Opens adapters into one exit stack, and the workers of a plan into groups on it.

    Args:
        cfg: The job; site: its facts.
        backend: Hosts the workers, whose calls are bounded by their own ports; ``bounded_home`` is the same, bounded.
        stack: Closes what was opened.
        waits: Where open calls are noted.
        at_once: Whether the workers of a role are launched at once.
        quarantine: Which failure domains are set aside.
        hooks: Are told of the groups.
        log: The run's.

    Attributes:
        home: The backend, bounded.
        mover: Knows where each worker is.
        incidents: What happened until now.
        failovers: Of every role that was launched.
        groups: Their workers.
        scaler: Changes the number of engines; None: none were launched.
        roles: How workers reach one another.
    """

    mover: Mover
    _fleet: Fleet
    _reservations: Reservations

    def __init__(
        self,
        cfg: RunConfig,
        site: Site,
        *,
        backend: Backend,
        bounded_home: Backend,
        given: Collection[str],
        stack: AsyncExitStack,
        waits: Waits,
        at_once: bool,
        quarantine: Quarantine,
        hooks: Hooks,
        log: FilteringBoundLogger,
    ) -> None:
        self.cfg = cfg
        self._site = site
        self._backend = backend
        self.home = bounded_home
        self.quarantine = quarantine
        self._journal = Journal(trained=lambda: WeightVersion(0), record=self._record, log=log, told=hooks.failed_over)
        self.hooks = hooks
        self.groups: list[WorkerGroup] = []
        self.incidents: list[Incident | Scaled] = []
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

    async def _record(self, incident: Incident | Scaled) -> None:
        await checkpoint()
        if isinstance(incident, Incident):
            incident = msgspec.structs.replace(incident, aside=self.quarantine.left(anyio.current_time()))
        self.incidents.append(incident)

    async def prepare(self, plan: Plan) -> None:
        """Hold all that a plan needs, and launch the user's own roles: the others may need them."""
        self._stack.enter_context(self.roles.open())
        self._fleet = Fleet(plan=plan)
        bundles, placement = plan.bundles, self.home.placement
        await self.home.launcher.serve_roles(self.roles)
        self._budget = self._make_budget(plan)
        with self._budget.phase(f"the reservation of {', '.join(bundle.name for bundle in bundles)}"):
            held = open_reservations(bundles, placement, stop_s=self.cfg.deadlines.abort)
            self._reservations = await self._stack.enter_async_context(held)
        self.mover = Mover(
            self._fleet,
            self.cfg,
            self._given,
            placement=placement,
            reservations=self._reservations,
            quarantine=self.quarantine,
        )
        for role in plan.roles:
            if role.name not in ROLES:
                await self.launch(role.name)

    def _make_budget(self, plan: Plan) -> Budget:
        """Begin the time of the start: one ``deadlines.start`` for each launch that waits for the one before it."""
        launches = len(plan.roles) if self._at_once else len(plan.vertices)
        return Budget(self.cfg.deadlines.start * max(1, launches))

    async def launch(self, role: str, probe: Probe | None = None) -> Failover:
        """Launch a role's workers; returns what brings back those that are lost."""
        return (await self._launch(role, probe))[0]

    async def _launch(self, role: str, probe: Probe | None = None) -> tuple[Failover, WorkerGroup]:
        if not self._fleet.plan.workers(role):
            raise InvariantError(f"the plan has no worker of the role {role}, and validation let it pass")

        def workers() -> tuple[Vertex, ...]:
            return self._fleet.plan.workers(role)

        master = self._master(role)
        attendance = Attendance()
        self._let_call(role, attendance)
        await self._stack.enter_async_context(self.hooks.around(role, workers))
        group = await self._stack.enter_async_context(
            open_group(
                workers(),
                self.home.launcher,
                self._site,
                start_s=self._budget.left_s,
                stop_s=self.cfg.deadlines.abort,
                at_once=self._at_once,
            )
        )
        await self._stack.enter_async_context(self.hooks.within(role, workers))
        self.groups.append(group)
        planned_role, answer_s = self._fleet.plan.role(role), self._answer_s
        failover = Failover(
            planned_role, group, attendance=attendance, holds_state=role == POLICY, probe=probe, answer_s=answer_s
        )
        failover.master = master
        failover.lose, failover.move = self.mover.lose, partial(self.mover.move, group)
        self.failovers.append(failover)
        return failover, group

    def _master(self, role: str) -> Master | None:
        section = self.cfg.fleet.roles.get(role, RoleConfig()).master
        if section is None:
            return None
        user = make(f"fleet.roles.{role}.master", section, self._site.job_dir)
        return Master(role, user, patience_s=self.cfg.fleet.answer_s, log=self._journal.log)

    def _let_call(self, role: str, attendance: Attendance) -> None:
        """Let the workers of a role be called by others; not those that the controller has to itself."""
        ranked = sorted(self._fleet.plan.workers(role), key=lambda vertex: vertex.ranks.role)
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
        failover, group = await self._launch(POLICY)
        if len(failover.members) == 1:
            return self._clients(TrainerPort, failover, waits=True)[failover.members[0]]
        return await open_ranks(
            failover,
            group,
            self._clients(RankPort, failover),
            check=self.cfg.fleet.check,
            recheck_s=self.cfg.deadlines.start,
            fleet=self._fleet,
            mover=self.mover,
            budget=self._budget,
            journal=self._journal,
        )

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
        failover.let_go = self.scaler.let_go
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
            placement=self.home.placement,
        )

        def problems_at(size: int) -> Iterable[Problem]:
            fields = msgspec.structs.asdict(msgspec.structs.replace(self.cfg, engines=size))
            return find_capacity_problems(fields, self._site.job_dir)

        return Scaler(self._fleet, self.cfg, self._given, hold=hold, problems_at=problems_at)

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
