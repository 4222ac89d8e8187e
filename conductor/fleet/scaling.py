"""More engines, or fewer, while a run goes on: new ones join when they are there, old ones end when drained."""

from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field

import anyio

from conductor.config import RunConfig
from conductor.core.planning.scaling import bundles_of, find_unscalable, grown, shrunk
from conductor.fleet.failover import Failover
from conductor.fleet.journal import Journal
from conductor.fleet.moving import Fleet
from conductor.fleet.pools import Pool
from conductor.fleet.reservation import Reservations
from protocols.aio import deadline
from protocols.backend import PlacementPort
from protocols.errors import ConductorError, ConfigError, PortFailed, Problem, Transient, UserError
from protocols.fleet import Plan
from protocols.incidents import Scaled
from protocols.inference import EnginePort
from protocols.messages import WorkerId


@dataclass(frozen=True, kw_only=True)
class Hold:
    """What a change of size takes hold of.

    Attributes:
        failover: Of the role that is scaled.
        pool: Serves its workers, but for ``reserved``, which are never ended.
        client: Returns the port of a worker.
        reservations: What the fleet holds of ``placement``.
    """

    failover: Failover
    pool: Pool
    reserved: frozenset[WorkerId]
    client: Callable[[WorkerId], EnginePort]
    reservations: Reservations
    placement: PlacementPort


@dataclass(kw_only=True)
class _Order:
    size: int
    done: anyio.Event = field(default_factory=anyio.Event)
    outcome: Scaled | None = None
    refusal: ConductorError | None = None


class Scaler:
    """Brings the engines to the number that somebody asks for; ``run`` is the one task that does.

    Args:
        fleet: Where the workers are.
        job: The job.
        given: Sections whose workloads are handed over in code.
        hold: What it takes hold of.
        problems_at: Finds what else stands against a size.
    """

    def __init__(
        self,
        fleet: Fleet,
        job: RunConfig,
        given: Collection[str],
        *,
        hold: Hold,
        problems_at: Callable[[int], Iterable[Problem]],
    ) -> None:
        self._fleet = fleet
        self._job = job
        self._given = given
        self._hold = hold
        self._problems_at = problems_at
        self._order: _Order | None = None
        self._asked = anyio.Event()

    async def scale(self, role: str, size: int) -> Scaled:
        """Ask for so many workers of a role, and wait for what comes of it, as long as ``run`` goes on.

        Cancelling: it is carried out all the same.

        Raises:
            UserError: It is refused, and nothing has changed.
        """
        if problem := find_unscalable(self._job, role, size):
            raise ConfigError([problem])
        if self._order is not None:
            raise UserError(f"{role} is being brought to {self._order.size} already; ask again when that is done")
        order = self._order = _Order(size=size)
        self._asked.set()
        await order.done.wait()
        if order.outcome is None:
            raise order.refusal or PortFailed("the run ended before that was done")
        return order.outcome

    async def let_go(self, workers: Collection[WorkerId], journal: Journal) -> str:
        """Go on without workers that are lost; their failover calls it.

        Returns:
            Why it cannot be done; nothing where it is.

        Raises:
            ConductorError: What they held cannot be given back.
        """
        hold, left = self._hold, len(self._hold.failover.members) - len(workers)
        if problem := find_unscalable(self._job, self._role, left):
            return str(problem)
        if self._fleet.turn.locked() or hold.reserved.intersection(workers):
            return "its size is being changed" if self._fleet.turn.locked() else "some of them evaluate"
        async with self._fleet.turn:
            bundles = [bundle.name for bundle in bundles_of(self._fleet.plan, workers)]
            plan = shrunk(self._fleet.plan, self._role, workers)
            try:
                await hold.failover.end(plan.workers(self._role))
            except (Transient, PortFailed) as exc:
                return str(exc)
            hold.pool.forget(workers)
            await hold.reservations.release(bundles)
            self._fleet.plan = plan
        journal.log.info("workers.let_go", role=self._role, workers=tuple(workers), left=left)
        return ""

    async def run(self, journal: Journal) -> None:
        """Carry out what is asked for until cancelled."""
        while True:
            await self._asked.wait()
            self._asked = anyio.Event()
            order, began = self._order, anyio.current_time()
            if order is None:
                continue
            try:
                async with self._fleet.turn:
                    order.outcome = await self._carry_out(order, journal, began)
            except UserError as exc:
                order.refusal = exc
            finally:
                self._order = None
                order.done.set()

    async def _carry_out(self, order: _Order, journal: Journal, began: float) -> Scaled:
        before, version = self._hold.failover.members, journal.trained()
        more = order.size - len(before)
        if not more:
            raise UserError(f"{self._role} has {order.size} already")
        if problems := list(self._problems_at(order.size)):
            raise ConfigError(problems)
        plan = await self._larger(more) if more > 0 else self._smaller(-more)
        names = {vertex.name for vertex in plan.workers(self._role)}
        workers = tuple(sorted(names.symmetric_difference(before)))
        journal.log.info("scaling.began", role=self._role, before=len(before), wanted=order.size, workers=workers)
        detail = await self._try(self._grow if more > 0 else self._shrink, plan, workers)
        outcome = Scaled(
            role=self._role,
            before=len(before),
            after=len(self._hold.failover.members),
            workers=workers,
            verdict="undone" if detail else "scaled",
            detail=detail,
            version=version,
            seconds=anyio.current_time() - began,
        )
        journal.log.info("scaling.ended", role=self._role, after=outcome.after, verdict=outcome.verdict, detail=detail)
        await journal.record(outcome)
        return outcome

    async def _larger(self, more: int) -> Plan:
        inventory = await self._hold.placement.inventory()
        plan = grown(self._fleet.plan, self._job, inventory, role=self._role, more=more, given=self._given)
        if isinstance(plan, Plan):
            return plan
        raise ConfigError(plan)

    def _smaller(self, fewer: int) -> Plan:
        may = [member for member in self._hold.failover.members if member not in self._hold.reserved]
        return shrunk(self._fleet.plan, self._role, may[-fewer:])

    async def _try(
        self, change: Callable[[Plan, tuple[WorkerId, ...]], Awaitable[None]], plan: Plan, workers: tuple[WorkerId, ...]
    ) -> str:
        """Make a change; returns why it was undone, or nothing."""
        try:
            await change(plan, workers)
        except (Transient, PortFailed, UserError) as exc:
            return str(exc)
        self._fleet.plan = plan
        return ""

    async def _grow(self, plan: Plan, workers: tuple[WorkerId, ...]) -> None:
        """Hold resources, launch, and only then let the pool know: each new one is stale until it has loaded."""
        hold, role = self._hold, self._role
        bundles = bundles_of(plan, workers)
        try:
            await hold.reservations.hold(bundles)
            with deadline(f"the launch of {', '.join(workers)}", self._job.deadlines.start * len(workers)):
                await hold.failover.grow(plan.workers(role))
        except (Transient, PortFailed, UserError):
            await hold.failover.grow(self._fleet.plan.workers(role))  # noqa: ASYNC120 - ends what was launched; cut, the run ends it
            await hold.reservations.release([bundle.name for bundle in bundles])  # noqa: ASYNC120 - as before
            raise
        hold.pool.add({worker: hold.client(worker) for worker in workers})

    async def _shrink(self, plan: Plan, workers: tuple[WorkerId, ...]) -> None:
        """Let what runs there finish, then end the workers; the pool asks them about aborts until they have ended."""
        hold = self._hold
        await hold.pool.drain(workers, within_s=self._job.deadlines.publish / 2)
        try:
            await hold.failover.shrink(plan.workers(self._role))
        except (Transient, PortFailed):
            hold.pool.forget(workers)
            hold.pool.add({worker: hold.client(worker) for worker in workers})
            raise
        hold.pool.forget(workers)
        bundles = [bundle.name for bundle in bundles_of(self._fleet.plan, workers)]
        await hold.reservations.release(bundles)

    @property
    def _role(self) -> str:
        return self._hold.failover.role.name
