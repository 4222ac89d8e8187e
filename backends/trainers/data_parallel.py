"""Many ranks behind one trainer: they meet, step together, and a lost one copies another, where each holds all."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Literal, TypeVar

import anyio
import structlog
from anyio.lowlevel import checkpoint

from backends.trainers._holdings import Copies, Holdings, holdings_of
from protocols.aio import owned
from protocols.errors import ConductorError, PeersLost, PortFailed, SnapshotLost, StateLost, WorkerLost
from protocols.inference import WeightsManifest
from protocols.messages import DispatchId, WeightVersion, WorkerId
from protocols.training import (
    AccumulateReport,
    BatchLease,
    CheckpointRequest,
    JoinRequest,
    RankPort,
    StageRequest,
    Standing,
    StepReport,
    TrainerPort,
)

log = structlog.get_logger(__name__)
T = TypeVar("T")

Revive = Callable[[WorkerId, WorkerLost], Awaitable[None]]
"""Launches a lost worker again under its own id, or raises what ends the run."""


class DataParallel:
    """A trainer of several ranks, each of which trains its share of every batch.

    Before a step the ranks meet, if they do not stand together: the first time, and after any call that failed or was
    cancelled. They take over the state of the one that has come farthest; one that is lost is revived before. So a
    lost rank costs the step under way at most, and no checkpoint is gone back to while one rank is left. Nobody is told
    ``WorkerLost`` of a single rank, which would mean that the trainer is gone. Where each rank holds a part only, all
    are needed, and none can be replaced.

    Args:
        ranks: By worker, rank 0 first.
        revive: Brings a lost one back.
        host: Tells the name by which the ranks reach the first one's machine; empty: that which it has itself.
    """

    def __init__(self, ranks: Mapping[WorkerId, RankPort], *, revive: Revive, host: Callable[[], str]) -> None:
        self._ranks = dict(ranks)
        self._revive = revive
        self._host = host
        self._holdings: Holdings = Copies()
        self._generation = 0
        self._together = False
        self._new: set[WorkerId] = set()
        self._snapshot: Literal["none", "held", "lost"] = "none"

    async def meet(self) -> None:
        """Have all ranks stand together.

        Raises:
            StateLost: No rank is left whose parameters are those of a version, or one whose part was needed.
            Transient: Some did not come.
        """
        if self._together:
            await checkpoint()
            return
        standings = {name: await self._standing(name) for name in self._ranks}
        self._holdings = holdings_of(standings)
        source = self._holdings.source(standings, self._new)
        names = list(self._ranks)
        self._generation += 1
        address = await self._offered(names[0])
        numbers = {id(self._ranks[name]): index for index, name in enumerate(names)}
        await self._all(
            lambda rank: rank.join(
                JoinRequest(
                    generation=self._generation,
                    rank=numbers[id(rank)],
                    world=len(names),
                    source=names.index(source),
                    address=address,
                )
            )
        )
        log.info("trainer.met", generation=self._generation, source=source, version=standings[source].version)
        self._new.clear()
        self._together = True

    def replaced(self, worker: WorkerId) -> None:
        """Take note that a rank is another process now, which holds nothing that was trained."""
        self._new.add(worker)
        self._together = False
        if self._snapshot == "held" and worker == next(iter(self._ranks)):
            self._snapshot = "lost"

    async def accumulate(self, batch: BatchLease) -> AccumulateReport:
        """Add the gradients of all shares; every rank then holds the sum."""
        return (await self._step(lambda rank: rank.accumulate(batch)))[0]

    async def apply(self, dispatch_id: DispatchId) -> StepReport:
        """Step on every rank. They do not meet before: nobody who comes anew has gradients."""
        if not self._together:
            raise PortFailed(f"{dispatch_id} is not accumulated any more: the ranks went apart")
        return (await self._all(lambda rank: rank.apply(dispatch_id)))[0]

    async def discard(self) -> None:
        """Zero the gradients of every rank that is left."""
        for rank in self._ranks.values():
            with suppress(WorkerLost):
                await rank.discard()

    async def train_step(self, batch: BatchLease) -> StepReport:
        """Step on every rank."""
        return (await self._step(lambda rank: rank.train_step(batch)))[0]

    async def outcome(self, dispatch_id: DispatchId) -> StepReport | None:
        """Return the report of any rank that made the step: the others will take over its state.

        Raises:
            StateLost: Nobody is left who could know.
        """
        lost: WorkerLost | None = None
        answers = 0
        for rank in self._ranks.values():
            try:
                report = await rank.outcome(dispatch_id)
            except WorkerLost as exc:
                lost = exc
                continue
            answers += 1
            if report is not None:
                return report
        if not answers and lost is not None:
            raise StateLost(workers=tuple(self._ranks), cause=lost.cause, preempted=lost.preempted) from lost
        return None

    async def stage_weights(self, request: StageRequest) -> WeightsManifest:
        """Stage those of rank 0, whatever process that is by then."""
        return await self._by_first(lambda rank: rank.stage_weights(request), "weights")

    async def snapshot(self) -> WeightVersion:
        """Copy what rank 0 has, which is what every rank has."""
        version = await self._by_first(lambda rank: rank.snapshot(), "state")
        self._snapshot = "held"
        return version

    async def save(self, request: CheckpointRequest) -> WeightVersion:
        """Save the snapshot where rank 0 took it, whatever the ranks do meanwhile; else what rank 0 has now.

        Raises:
            SnapshotLost: Rank 0 is lost, and the snapshot with it.
        """
        snapshot, self._snapshot = self._snapshot, "none"
        if snapshot == "none":
            return await self._by_first(lambda rank: rank.save(request), "state")
        name, rank = next(iter(self._ranks.items()))
        if snapshot == "lost":
            raise SnapshotLost(f"{name} was lost, and what it was to save with it")
        try:
            return await rank.save(request)
        except WorkerLost as exc:
            raise SnapshotLost(f"{name} was lost while it saved: {exc}") from exc

    async def load(self, request: CheckpointRequest) -> WeightVersion:
        """Load on every rank."""
        return (await self._step(lambda rank: rank.load(request)))[0]

    async def _by_first(self, call: Callable[[RankPort], Awaitable[T]], takes: Literal["weights", "state"]) -> T:
        """Call rank 0, again when it is lost: as often as it can be revived. Of a part, others add theirs."""
        while True:
            await self.meet()
            name, rank = next(iter(self._ranks.items()))
            if self._holdings.parts:
                return await self._gathered(call, rank, takes)
            try:
                return await call(rank)
            except WorkerLost as exc:
                log.warning("trainer.rank_lost", rank=name, error=str(exc))
                self._together = False

    async def _gathered(
        self, call: Callable[[RankPort], Awaitable[T]], first: RankPort, takes: Literal["weights", "state"]
    ) -> T:
        results: list[T] = []

        async def one(rank: RankPort) -> None:
            if rank is first:
                results.append(await call(rank))
            else:
                await rank.contribute(takes)

        await self._all(one)
        return results[0]

    async def _step(self, call: Callable[[RankPort], Awaitable[T]]) -> list[T]:
        await self.meet()
        return await self._all(call)

    async def _all(self, call: Callable[[RankPort], Awaitable[T]]) -> list[T]:
        """Call every rank at once.

        Where one fails, the others are cancelled. One that lost the others is no reason: whoever left them has one.
        """
        results: dict[WorkerId, T] = {}
        failures: list[ConductorError] = []

        async def one(name: WorkerId, rank: RankPort) -> None:
            try:
                results[name] = await owned(f"a step of {name}", partial(call, rank))
            except ConductorError as exc:
                failures.append(self._of_rank(name, exc))
                if not isinstance(exc, PeersLost):
                    group.cancel_scope.cancel()

        together, self._together = self._together, False
        async with anyio.create_task_group() as group:
            for name, rank in self._ranks.items():
                group.start_soon(one, name, rank)
        if failures:
            raise _cause(failures)
        self._together = together
        return [results[name] for name in self._ranks]

    async def _offered(self, name: WorkerId) -> str:
        try:
            return await self._ranks[name].offer(self._host())
        except WorkerLost as exc:
            raise self._of_rank(name, exc) from exc

    async def _standing(self, name: WorkerId) -> Standing:
        while True:
            try:
                return await self._ranks[name].standing()
            except WorkerLost as exc:
                self._new.add(name)
                await self._revive(name, exc)

    def _of_rank(self, name: WorkerId, failure: ConductorError) -> ConductorError:
        if not isinstance(failure, WorkerLost):
            return failure
        told = self._holdings.failure(name, failure)
        told.__cause__ = failure
        return told


_: type[TrainerPort] = DataParallel


def _cause(failures: list[ConductorError]) -> ConductorError:
    """Return what went wrong first: whoever failed made the others fail who waited for it."""
    return next((one for one in failures if not isinstance(one, PeersLost)), failures[0])
