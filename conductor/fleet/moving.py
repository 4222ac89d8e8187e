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
from protocols.fleet import Cause, Plan, Vertex
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
    """Counts the losses of each failure domain, and finds those another place whose domain is set aside, or gone.

    Where there is no other place, or while the size of the fleet is being changed, workers stay in their own.

    Args:
        fleet: Where everybody is.
        job: The job.
        given: Sections whose workloads are handed over in code.
        placement: What there is.
        reservations: What the fleet holds of it.
        quarantine: Which domains are set aside.
    """

    def __init__(
        self,
        fleet: Fleet,
        job: RunConfig,
        given: Collection[str],
        *,
        placement: PlacementPort,
        reservations: Reservations,
        quarantine: Quarantine,
    ) -> None:
        self._fleet = fleet
        self._job = job
        self._given = given
        self._placement = placement
        self._reservations = reservations
        self._quarantine = quarantine

    def lose(self, workers: Collection[WorkerId], cause: Cause) -> None:
        """Take note that workers were lost where they are."""
        now = anyio.current_time()
        for vertex in self._places(workers).values():
            self._quarantine.lose(vertex.domain, now=now, preempted=cause == "preemption")

    def set_aside(self, workers: Collection[WorkerId]) -> None:
        """Set the domains of workers aside."""
        for domain in {vertex.domain for vertex in self._places(workers).values()}:
            self._quarantine.set_aside(domain, now=anyio.current_time())

    async def move(self, group: WorkerGroup, workers: Collection[WorkerId], journal: Journal) -> tuple[str, ...]:
        """Move workers of one role whose domain is set aside, or whose node is not there any more.

        Args:
            group: Theirs; it launches those that move in their new places from then on.
            workers: Who is about to be launched again.
            journal: Is told where nobody could be moved.

        Returns:
            Who is moved from where to where, in words.

        Raises:
            Infeasible: A node is gone, and there is no other place for who was there; the numbers are in it.
            Transient: What was given up for a move is held by others now, and so is the new place.
            PortFailed: What they held cannot be given back.
        """
        if self._fleet.turn.locked():
            return ()
        async with self._fleet.turn:
            inventory, vertices = await self._placement.inventory(), self._places(workers)
            nodes, aside = {node.name for node in inventory.nodes}, self._quarantine.aside(anyio.current_time())
            gone = [name for name, vertex in vertices.items() if vertex.node not in nodes]
            leaving = tuple(name for name, vertex in vertices.items() if vertex.domain in aside or name in gone)
            if not leaving or (not gone and all((node.domain or node.name) in aside for node in inventory.nodes)):
                return ()
            before = self._fleet.plan
            found = moved(before, self._job, inventory, workers=leaving, avoid=aside, given=self._given)
            if not isinstance(found, Plan):
                if gone:
                    what = f"{', '.join(gone)} cannot be launched, since the node is gone, and elsewhere: {found[0]}"
                    raise Infeasible(what=what, asked=len(gone), available=0)
                journal.log.warning("workers.not_moved", workers=leaving, aside=sorted(aside), why=str(found[0]))
                return ()
            await group.end(leaving)
            if not await self._exchange(before, found, leaving, journal):
                return ()
            self._fleet.plan = found
        there = {vertex.name: vertex for vertex in found.vertices}
        group.assign([there[name] for name in leaving])
        return tuple(f"{name} is moved from {vertices[name].node} to {there[name].node}" for name in leaving)

    def _places(self, workers: Collection[WorkerId]) -> dict[WorkerId, Vertex]:
        return {vertex.name: vertex for vertex in self._fleet.plan.vertices if vertex.name in workers}

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
