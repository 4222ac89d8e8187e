"""The nodes of workers that train together are checked before they do: in pairs, in two rounds."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial

import anyio

from conductor.config import CheckConfig
from conductor.core.node_check import Findings, Group, Trial, Wave, first_round, judge, search, second_round
from conductor.fleet.together import all_or_first
from protocols.aio import owned
from protocols.errors import ConductorError, PeersLost, PortFailed, Transient
from protocols.fleet import Vertex
from protocols.messages import WorkerId
from protocols.training import CheckReport, CheckRequest, RankPort


class NodeCheck:
    """Tries the nodes of some ranks; those of one node are tried together.

    Where all lie on one node there is nothing to compare but the ranks, and so their devices: each is tried by itself.

    Args:
        cfg: How long a trial may take, and what is slow.
        ranks: Who computes.
        places: Tells where each of them lies.
        host: Tells by which name ranks reach one another, empty: by their nodes' own.
    """

    def __init__(
        self,
        cfg: CheckConfig,
        ranks: Mapping[WorkerId, RankPort],
        *,
        places: Callable[[], Sequence[Vertex]],
        host: Callable[[], str],
    ) -> None:
        self._cfg = cfg
        self._ranks = ranks
        self._places = places
        self._host = host
        self._trials = 0

    async def run(self) -> Findings:
        """Try all of them, those in doubt twice.

        Cancelling: the ranks stop within the deadline of a trial; nothing that is trained has changed.
        """
        units = units_of(self._places())
        names, ratio = tuple(units), self._cfg.slower
        trials = await self._round(first_round(names), units)
        for wave in search(names, trials):
            found = await self._round([wave], units)
            trials += found
            if not all(trial.failure for trial in found):
                break
        trials += await self._round(second_round(names, trials, ratio=ratio), units)
        return judge(names, trials, ratio=ratio)

    def workers(self, units: Collection[str]) -> tuple[WorkerId, ...]:
        """Return whose units some are."""
        known = units_of(self._places())
        return tuple(worker for unit in units for worker in known.get(unit, ()))

    async def _round(self, waves: Sequence[Wave], units: Mapping[str, Sequence[WorkerId]]) -> list[Trial]:
        trials: list[Trial] = []

        async def one(group: Group, number: int) -> None:
            trials.append(await self._try(group, number, units))

        for wave in waves:
            acts: dict[str, Callable[[], Awaitable[None]]] = {}
            for group in wave:
                self._trials += 1
                acts[f"check of {' and '.join(group)}"] = partial(one, group, self._trials)
            await all_or_first(acts)
        return trials

    async def _try(self, group: Group, number: int, units: Mapping[str, Sequence[WorkerId]]) -> Trial:
        members = [worker for unit in group for worker in units[unit]]
        reports: dict[WorkerId, CheckReport] = {}
        try:
            with anyio.move_on_after(self._cfg.deadline_s) as scope:
                await self._meet(members, number, reports)
        except (Transient, PortFailed) as exc:
            return Trial(group=group, seconds={}, failure=str(exc))
        if scope.cancelled_caught:
            silent = ", ".join(worker for worker in members if worker not in reports)
            failure = f"no answer of {silent} within {self._cfg.deadline_s:g} s"
            return Trial(group=group, seconds={}, failure=failure)
        took = {worker: report.compute_s + report.exchange_s for worker, report in reports.items()}
        return Trial(group=group, seconds={unit: max(took[worker] for worker in units[unit]) for unit in group})

    async def _meet(self, members: Sequence[WorkerId], number: int, reports: dict[WorkerId, CheckReport]) -> None:
        """Have all members compute and exchange; raises what made the others fail, if any did."""
        address = await self._ranks[members[0]].offer(self._host()) if len(members) > 1 else ""
        failures: list[ConductorError] = []

        async def ask(rank: int, member: WorkerId) -> None:
            request = CheckRequest(
                trial=number, rank=rank, world=len(members), address=address, patience_s=self._cfg.deadline_s
            )
            try:
                reports[member] = await owned(f"check of {member}", partial(self._ranks[member].check, request))
            except (Transient, PortFailed) as exc:
                failures.append(exc)
                if not isinstance(exc, PeersLost):  # the others lost it; who lost others goes on until they are heard
                    tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            for rank, member in enumerate(members):
                tasks.start_soon(ask, rank, member, name=f"check of {member}")
        if failures:
            raise next((one for one in failures if not isinstance(one, PeersLost)), failures[0])


def units_of(places: Sequence[Vertex]) -> dict[str, list[WorkerId]]:
    """Return what is tried, and whose it is: nodes, or the workers where there is one node only."""
    nodes: dict[str, list[WorkerId]] = {}
    for vertex in places:
        nodes.setdefault(vertex.node, []).append(vertex.name)
    return nodes if len(nodes) > 1 else {vertex.name: [vertex.name] for vertex in places}
