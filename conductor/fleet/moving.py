"""Workers that are launched again in another place, while their own is set aside."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import anyio

from conductor.config import RunConfig
from conductor.core.planning.scaling import bundles_of, moved
from conductor.core.quarantine import Quarantine
from conductor.fleet.group import WorkerGroup
from conductor.fleet.journal import Journal
from conductor.fleet.reservation import Reservations
from protocols.backend import PlacementPort
from protocols.errors import Infeasible, Transient
from protocols.fleet import Cause, Plan
from protocols.messages import WorkerId


@dataclass(kw_only=True)
class Fleet:
    """Where everybody is now.

    Attributes:
        plan: As it has become since the start.
        turn: Held by whoever changes it.
    """

    plan: Plan
    turn: anyio.Lock = field(default_factory=anyio.Lock)


class Mover:
    """Counts the losses of each failure domain, and finds those another place whose domain is set aside.

    Where there is no other place, or while the size of the fleet is being changed, workers stay in their own.

    Args:
        fleet: Where everybody is.
        job: The job.
        given: Sections whose workloads are handed over in code.
        placement: What there is.
        reservations: What the fleet holds of it.
    """

    def __init__(
        self,
        fleet: Fleet,
        job: RunConfig,
        given: Collection[str],
        *,
        placement: PlacementPort,
        reservations: Reservations,
    ) -> None:
        self._fleet = fleet
        self._job = job
        self._given = given
        self._placement = placement
        self._reservations = reservations
        self._quarantine = Quarantine()

    async def move(
        self, group: WorkerGroup, workers: Collection[WorkerId], cause: Cause, journal: Journal
    ) -> tuple[str, ...]:
        """Take note of lost workers of one role, and move those whose domain is set aside.

        Args:
            group: Theirs; it launches those that move in their new places from then on.
            workers: Who is about to be launched again.
            cause: Of the loss.
            journal: Is told where nobody could be moved.

        Returns:
            Who is moved from where to where, in words.

        Raises:
            Transient: What was given up for a move is held by others now, and so is the new place.
            PortFailed: What they held cannot be given back.
        """
        now = anyio.current_time()
        vertices = {vertex.name: vertex for vertex in self._fleet.plan.vertices if vertex.name in workers}
        for vertex in vertices.values():
            self._quarantine.lose(vertex.domain, now=now, preempted=cause == "preemption")
        aside = self._quarantine.aside(now)
        leaving = tuple(name for name, vertex in vertices.items() if vertex.domain in aside)
        if not leaving or self._fleet.turn.locked():
            return ()
        async with self._fleet.turn:
            before, inventory = self._fleet.plan, await self._placement.inventory()
            if all((node.domain or node.name) in aside for node in inventory.nodes):
                return ()
            found = moved(before, self._job, inventory, workers=leaving, avoid=aside, given=self._given)
            if not isinstance(found, Plan):
                journal.log.warning("workers.not_moved", workers=leaving, aside=sorted(aside), why=str(found[0]))
                return ()
            await group.end(leaving)
            if not await self._exchange(before, found, leaving, journal):
                return ()
            self._fleet.plan = found
        there = {vertex.name: vertex for vertex in found.vertices}
        group.assign([there[name] for name in leaving])
        return tuple(f"{name} is moved from {vertices[name].node} to {there[name].node}" for name in leaving)

    async def _exchange(self, before: Plan, after: Plan, leaving: Sequence[WorkerId], journal: Journal) -> bool:
        """Hold the new places instead of the old ones; return whether they could be had."""
        old, new = bundles_of(before, leaving), bundles_of(after, leaving)
        await self._reservations.release([bundle.name for bundle in old])
        try:
            await self._reservations.hold(new)
        except (Transient, Infeasible) as exc:
            journal.log.warning("workers.not_moved", workers=tuple(leaving), why=str(exc))
        else:
            return True
        await self._reservations.release([bundle.name for bundle in new])
        await self._reservations.hold(old)
        return False
