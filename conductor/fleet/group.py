"""One role's workers: launched as a whole or not at all, and ended whatever happens."""

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio

from conductor.fleet.calling import Calls
from conductor.fleet.together import all_or_first
from conductor.fleet.undo import undo_each, undoing
from protocols.backend import LauncherPort, WorkerState, WorkloadSpec
from protocols.errors import DeadlineExceeded, WorkerLost
from protocols.fleet import Vertex
from protocols.lifecycle import LifecyclePort
from protocols.messages import WorkerId
from protocols.sections import Site

_LOOK_S = 1.0
"""Between two looks, while some members are being launched, at those that are."""


def spec_of(vertex: Vertex, site: Site) -> WorkloadSpec:
    """Return what a launcher is told of a planned worker."""
    return WorkloadSpec(
        worker_id=vertex.name,
        section=vertex.section,
        adapter=vertex.adapter,
        site=site,
        reservation_id=vertex.bundle,
        cpus=vertex.cpus,
        environment=vertex.environment,
        devices=vertex.devices,
        ranks=vertex.ranks,
    )


@dataclass(frozen=True, kw_only=True)
class Sight:
    """The members of a group at one moment.

    Attributes:
        losses: Those that do not run, and why.
        leaving: Those that run, and whose places are about to be taken away.
    """

    losses: dict[WorkerId, WorkerLost]
    leaving: tuple[WorkerId, ...]


def sight_of(members: Collection[WorkerId], states: Mapping[WorkerId, WorkerState]) -> Sight:
    """Return what a launcher's answer says of some members, in their order."""
    losses: dict[WorkerId, WorkerLost] = {}
    leaving: list[WorkerId] = []
    for member in members:
        state = states.get(member)
        if state is None:
            losses[member] = WorkerLost(worker=member, cause="it was not launched")
        elif state.cause is not None:
            losses[member] = WorkerLost(worker=member, cause=state.cause, preempted=state.preempted)
        elif state.leaving:
            leaving.append(member)
    return Sight(losses=losses, leaving=tuple(leaving))


class WorkerGroup:
    """The face of a group (``LifecyclePort``); opened by ``open_group``.

    Args:
        vertices: The members, where a plan puts them.
        launcher: What starts them.
        site: Facts about the run.
        at_once: Whether they are launched at once, or one after the other.

    Attributes:
        calls: Calls them, in the order of their ranks in the role.
    """

    def __init__(self, vertices: Sequence[Vertex], launcher: LauncherPort, site: Site, *, at_once: bool) -> None:
        self._specs = {vertex.name: spec_of(vertex, site) for vertex in vertices}
        self._launcher = launcher
        self._at_once = at_once
        self._site = site
        self._joining: dict[WorkerId, WorkloadSpec] = {}
        self._up: set[WorkerId] = set()
        ranked = sorted(vertices, key=lambda vertex: vertex.ranks.role)
        self.calls = Calls([vertex.name for vertex in ranked], self._call)

    @property
    def members(self) -> tuple[WorkerId, ...]:
        """All of them, in the order of the plan."""
        return tuple(self._specs)

    async def start(self, *, start_s: float) -> None:
        """Launch every member. One that fails, or dies while others are launched, ends the start at once.

        Raises:
            DeadlineExceeded: It took longer than ``start_s``; it names those that were not there.
            WorkerLost: A member died that had been launched.
            ConductorError: A member could not be launched.
        """
        with anyio.move_on_after(start_s) as scope:
            await self._launch(self.members)
        if scope.cancelled_caught:
            behind = ", ".join(member for member in self.members if member not in self._up)
            raise DeadlineExceeded(what=f"the launch of {behind}", deadline_s=start_s)

    async def replace(self, members: tuple[WorkerId, ...]) -> None:
        """End some members, if anything of them runs, and launch them again in their places, under their own ids.

        Cancelling: some may be gone; ``stop`` and another ``replace`` find them so.

        Raises:
            ConductorError: One could not be ended or launched.
        """
        wanted = set(members)
        names = tuple(member for member in self._specs if member in wanted)
        self._up.difference_update(names)
        await self.end(names)
        await self._launch(names)

    async def end(self, members: Sequence[WorkerId]) -> None:
        """End some members; they are missing until they are replaced.

        Raises:
            ConductorError: One could not be ended.
        """
        await all_or_first({f"end of {name}": partial(self._launcher.kill, name) for name in members})

    def assign(self, vertices: Sequence[Vertex]) -> None:
        """Give members that do not run other places, where they are launched from now on."""
        self._specs |= {vertex.name: spec_of(vertex, self._site) for vertex in vertices}

    async def scale(self, vertices: tuple[Vertex, ...]) -> None:
        """Launch those of some vertices that are no members yet, then end the members that are none of them.

        Raises:
            ConductorError: One could not be launched or ended.
        """
        wanted = {vertex.name: spec_of(vertex, self._site) for vertex in vertices}
        await self.end(tuple(self._joining))  # what one that failed has left
        self._joining = {name: spec for name, spec in wanted.items() if name not in self._specs}
        await self._launch(tuple(self._joining))
        self._specs |= self._joining  # not before it is there: whoever looks after the members would bring it back
        self._joining = {}
        leaving = tuple(name for name in self._specs if name not in wanted)
        self._up.difference_update(leaving)
        await self.end(leaving)
        self._specs = {name: spec for name, spec in self._specs.items() if name in wanted}

    async def ready(self) -> frozenset[WorkerId]:
        """Return the members that run."""
        states = await self._launcher.poll()
        return frozenset(member for member in self.members if member in states and states[member].running)

    async def missing(self) -> frozenset[WorkerId]:
        """Return the members that should run and do not."""
        return frozenset(self.members) - await self.ready()

    async def look(self) -> Sight:
        """Return what the launcher knows of the members."""
        return sight_of(self._specs, await self._launcher.poll())

    async def probe(self, member: WorkerId) -> bool:
        """Return whether one member runs."""
        return member in await self.ready()

    async def stop(self) -> None:
        """End every member, all of them even if one fails.

        Raises:
            PortFailed: Some could not be ended; it names them.
        """
        await undo_each((*self.members, *self._joining), lambda member: self._launcher.kill(WorkerId(member)))

    async def _call(self, member: WorkerId, method: str, args: tuple[Any, ...]) -> Any:
        return await self._launcher.call(member, method, args)

    async def _launch(self, members: Sequence[WorkerId]) -> None:
        if not members:
            return
        acts = {f"launch of {member}": partial(self._launch_one, member) for member in members}
        if self._at_once:
            await all_or_first(acts, beside=partial(self._watch, members))
            return

        async def in_turn() -> None:
            for act in acts.values():
                await act()

        await all_or_first({"launch of one after the other": in_turn}, beside=partial(self._watch, members))

    async def _launch_one(self, member: WorkerId) -> None:
        await self._launcher.launch(self._specs.get(member) or self._joining[member])
        self._up.add(member)

    async def _watch(self, members: Sequence[WorkerId]) -> None:
        """Fail when one of some members dies that had been launched."""
        while True:
            await anyio.sleep(_LOOK_S)
            states = await self._launcher.poll()
            losses = sight_of([member for member in members if member in self._up], states).losses
            for loss in losses.values():
                raise loss


_: type[LifecyclePort] = WorkerGroup


@asynccontextmanager
async def open_group(
    vertices: Sequence[Vertex],
    launcher: LauncherPort,
    site: Site,
    *,
    start_s: float,
    stop_s: float,
    at_once: bool = False,
) -> AsyncGenerator[WorkerGroup]:
    """Launch every member; on the way out, and on any failure on the way in, end them all.

    An id that was never launched is no error to kill, so the undo covers every step.

    Args:
        vertices: The members, where a plan puts them; their bundles are reserved.
        launcher: What starts them.
        site: Facts about the run.
        start_s: Deadline of the start, in seconds.
        stop_s: Deadline of the undo, in seconds; it is shielded for as long.
        at_once: Whether members are launched at once: only where each has a process of its own.

    Raises:
        ConductorError: As ``WorkerGroup.start``.
    """
    group = WorkerGroup(vertices, launcher, site, at_once=at_once)
    async with undoing(group.stop, stop_s):
        await group.start(start_s=start_s)
        yield group
