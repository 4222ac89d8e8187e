"""Many engines behind one inference controller: routing, versions, aborts."""

import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial

import anyio
import msgspec
import structlog
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from backends.engines._keepers import Keepers
from backends.engines._member import Member
from backends.engines._renewal import Renewer
from backends.engines._routing import Routing
from protocols.aio import deadline, open_tasks, owned
from protocols.errors import Aborted, ConductorError, EngineStale, Stalled, Transient, WorkerLost
from protocols.inference import (
    AbortReport,
    EnginePort,
    EngineStatus,
    GenerateRequest,
    Generation,
    InferenceControllerPort,
    PublishMode,
    PublishReceipt,
    Readiness,
    WeightsManifest,
)
from protocols.messages import WeightVersion, WorkerId

log = structlog.get_logger(__name__)


@dataclass(eq=False)
class _Waiting:
    """A request that no engine has yet; ``aborted`` is the prefix of the abort that ended it there."""

    request: GenerateRequest
    scope: anyio.CancelScope
    aborted: str | None = None


class EnginePool:
    """Sends each request to one of the members that serve confirmed weights, as ``Routing`` chooses.

    A publish says which weights are wanted. Each member has a keeper, a task that lets it serve them: at the publish;
    again, after growing pauses, while that fails; and alone, when it is lost and found or turns out to serve none. A
    member that does not serve gets no requests, and nobody else waits for it. Requests wait while no member serves;
    those that run when a publish comes go on, stand still, or are waited for.

    What an engine does not answer within ``answer_s`` counts as not answered. ``WorkerLost`` is an answer:
    the engine is gone, and with it whatever it ran. Opened by ``open_pool``.

    Args:
        engines: By member.
        mode: What a publish does with the requests that run.
        answer_s: Seconds within which an engine answers a probe, an abort or a resume; below the deadline
            that the caller has for its abort, so that one silent engine does not hide what the others said.
        publish_s: Seconds that a publish may take, and a request may wait for a member that serves; below the
            deadline that the caller has for its publish. A member has half of them to load.
    """

    def __init__(
        self,
        engines: Mapping[WorkerId, EnginePort],
        *,
        mode: PublishMode = "inflight",
        answer_s: float = 5.0,
        publish_s: float = 60.0,
    ) -> None:
        self._members = [Member(name, engine) for name, engine in engines.items()]
        self._routing = Routing(self._members)
        self._answer_s = answer_s
        self._publish_s = publish_s
        self._renewer = Renewer(mode=mode, answer_s=answer_s, load_s=publish_s / 2, paused=lambda: self._paused)
        self._keepers = Keepers(self._members, self._renewer, publish_s=publish_s)
        self._publishing = anyio.Lock()
        self._paused = False
        self._waiting: dict[_Waiting, None] = {}

    async def endpoint(self) -> str:
        """Return a name: executors are handed the pool itself."""
        await checkpoint()
        return "pool"

    async def prepare_rollout(self) -> Readiness:
        """Probe the engines that serve; one that is lost, or serves something else, is its keeper's."""

        async def probe(member: Member) -> None:
            before = member.confirmed
            with deadline(f"probe of {member.name}", self._answer_s):
                status = await member.engine.status()
            if member.confirmed == before != status.version:
                member.stale()  # restarted, or loaded by somebody else

        await checkpoint()
        serving = [member for member in self._members if member.confirmed is not None]
        silent = await self._each("probe", serving, probe)
        for member in serving:
            if member.name in silent:
                member.lose()
        await self.resume()
        return Readiness(
            members=self._names(lambda member: member.confirmed is not None),
            stale=self._names(lambda member: member.confirmed is None and not member.lost),
            lost=self._names(lambda member: member.lost),
        )

    async def generate(self, request: GenerateRequest) -> Generation:
        """Generate on one engine. A member that turns out to be lost or stale gets no more requests.

        Where a member refuses the request because it serves nothing, another one gets it.

        Raises:
            Stalled: No member served for ``publish_s``.
        """
        for _ in tuple(self._members):
            member = self._free(request) or await self._awaited(request)
            call = anyio.CancelScope()
            member.calls[call] = None
            self._routing.begin(member, request)
            try:
                with call:
                    generation = await member.engine.generate(request)
                    return msgspec.structs.replace(generation, engine=member.name)
            except WorkerLost as exc:
                member.lose()
                raise WorkerLost(worker=member.name, cause=exc.cause) from exc
            except EngineStale:
                member.stale()
            finally:
                del member.calls[call]
                self._routing.end(member, request)
            if call.cancelled_caught:
                raise WorkerLost(worker=member.name, cause="it was too slow to let newer weights in")
        await checkpoint()
        raise EngineStale(engine="every engine")

    async def abort(self, prefix: str) -> AbortReport:
        """Abort on all engines at once, then ask each what still lives.

        Takes at most ``answer_s``; engines that do not answer are reported by name.
        """
        confirmed: set[str] = set()
        unconfirmed: set[str] = set()
        for waiting in self._waiting:  # an engine that comes back later will not have heard of this abort
            if any(sample.request_id.startswith(prefix) for sample in waiting.request.samples):
                waiting.aborted = prefix
                waiting.scope.cancel()

        async def abort(member: Member) -> None:
            with deadline(f"abort on {member.name}", self._answer_s):
                ended = await member.engine.abort(prefix)
                live = await member.engine.live_requests()
            confirmed.update(ended - live)
            unconfirmed.update(name for name in live if name.startswith(prefix))

        failures = await self._each("abort", self._members, abort)
        unconfirmed.update(name for name, error in failures.items() if not isinstance(error, WorkerLost))
        return AbortReport(confirmed=frozenset(confirmed), unconfirmed=frozenset(unconfirmed))

    async def live_requests(self) -> frozenset[str]:
        """Ask every engine.

        Raises:
            Transient: One did not answer, so nobody knows.
        """
        live: set[str] = set()

        async def ask(member: Member) -> None:
            live.update(await member.engine.live_requests())

        failures = await self._each("live requests", self._members, ask)
        _raise_first(error for error in failures.values() if not isinstance(error, WorkerLost))
        return frozenset(live)

    async def publish(self, manifest: WeightsManifest) -> PublishReceipt:
        """Let every member serve ``manifest``; those that do take requests at once.

        Waits for the members that served before, but not longer than half of ``publish_s`` where others have confirmed.
        Who has not confirmed is stale: it is left to its keeper.
        """
        await checkpoint()
        async with self._publishing:
            self._keepers.want(manifest)
            await self._keepers.settle()
        confirmed = self._names(lambda member: member.confirmed == manifest.version)
        if not confirmed:
            raise Stalled(f"no engine confirmed version {manifest.version}: {self._keepers.standing()}")
        return PublishReceipt(
            version=manifest.version,
            confirmed=confirmed,
            stale=self._names(lambda member: member.confirmed != manifest.version),
        )

    async def versions(self) -> dict[WorkerId, WeightVersion | None]:
        """Return what each member confirmed last."""
        await checkpoint()
        return {member.name: member.confirmed for member in self._members}

    async def statuses(self) -> dict[WorkerId, EngineStatus | None]:
        """Ask every member, for at most ``answer_s``; whoever only watches marks none as lost."""
        found: dict[WorkerId, EngineStatus | None] = {member.name: None for member in self._members}

        async def ask(member: Member) -> None:
            with suppress(Transient), deadline(f"status of {member.name}", self._answer_s):
                found[member.name] = await owned(f"status of {member.name}", member.engine.status)

        async with anyio.create_task_group() as tasks:
            for member in self._members:
                tasks.start_soon(ask, member, name=f"status of {member.name}")
        return found

    async def pause(self) -> None:
        """Let requests wait and pause every engine; if one cannot be paused, all go on.

        Raises:
            Transient: An engine did not pause.
        """
        self._paused = True
        done = False
        try:
            failures = await self._each("pause", self._members, lambda member: member.engine.pause())
            _raise_first(error for error in failures.values() if not isinstance(error, WorkerLost))
            done = True
        finally:
            if not done:
                await self.resume()  # noqa: ASYNC102 - shielded there, with a deadline

    async def resume(self) -> None:
        """Let every engine go on, and requests pass; under a shield of twice ``answer_s`` at most.

        A member that cannot be resumed is stale: it gets no requests. A lost one is resumed when it is found again.
        """
        self._paused = False
        try:
            await self._each("resume", [member for member in self._members if not member.lost], self._resume)
        finally:
            self._keepers.moved.ring()

    def replaced(self, worker: WorkerId) -> None:
        """Take note that an engine is another process now, which serves nothing: its keeper lets it, alone."""
        for member in self._members:
            if member.name == worker:
                member.lost, member.leaving = True, False
                member.stale()

    def add(self, engines: Mapping[WorkerId, EnginePort]) -> None:
        """Take engines in beside the others: each is stale until it has loaded what is wanted, alone."""
        for name, engine in engines.items():
            member = Member(name, engine, lost=True)
            self._members.append(member)
            self._routing.add(member)
            self._keepers.keep(member)

    async def drain(self, workers: Collection[WorkerId], *, within_s: float) -> None:
        """Send nothing more to some engines, and wait for what they work on; what is left then is tried elsewhere.

        They go on with newer weights, and answer aborts, until ``forget``. Where this is cancelled they are as before.
        """
        members = [member for member in self._members if member.name in workers]
        done = False
        for member in members:
            member.leaving = True
        try:
            with anyio.move_on_after(within_s):
                for member in members:
                    await member.quiet()
            for member in members:
                member.cut()
            for member in members:
                await member.quiet()
            done = True
        finally:
            for member in members:
                member.leaving = done
            self._keepers.moved.ring()

    def forget(self, workers: Collection[WorkerId]) -> None:
        """Let go of engines that have ended."""
        for member in [member for member in self._members if member.name in workers]:
            self._members.remove(member)
            self._routing.remove(member)
            self._keepers.release(member)

    def start(self, tasks: TaskGroup) -> None:
        """Start the keepers; they end with ``tasks``."""
        self._keepers.start(tasks)

    async def _resume(self, member: Member) -> None:
        if not await self._renewer.resume(member):
            member.stale()

    async def _each(
        self, what: str, members: Iterable[Member], call: Callable[[Member], Awaitable[None]]
    ) -> dict[WorkerId, ConductorError]:
        """Call members at once; return what failed, after marking those that are lost."""
        failures: dict[WorkerId, ConductorError] = {}

        async def one(member: Member) -> None:
            try:
                await owned(f"{what} on {member.name}", partial(call, member))
            except ConductorError as exc:
                failures[member.name] = exc
                log.warning("engine.call_failed", call=what, member=member.name, error=str(exc))
                if isinstance(exc, WorkerLost):
                    member.lose()

        async with anyio.create_task_group() as tasks:
            for member in members:
                tasks.start_soon(one, member, name=f"{what} on {member.name}")
        return failures

    def _free(self, request: GenerateRequest) -> Member | None:
        """Return who is to work on a request; None where nobody serves, or the pool is paused."""
        return None if self._paused else self._routing.choose(request)

    async def _awaited(self, request: GenerateRequest) -> Member:
        """Wait until a member serves and the pool is not paused; return the one that is to work on a request.

        Between the return and the call of the engine nothing else runs, so no request slips in behind a publish.
        """
        await checkpoint()
        since = anyio.current_time()
        while (member := self._free(request)) is None:
            if self._paused:
                await self._wait(request, math.inf)
                since = anyio.current_time()
                continue
            wanted = self._keepers.wanted
            if wanted is None:
                raise EngineStale(engine=", ".join(member.name for member in self._members))
            left = since + self._publish_s - anyio.current_time()
            if left <= 0 or self._keepers.hopeless:
                raise Stalled(f"no engine serves version {wanted.version}: {self._keepers.standing()}")
            await self._wait(request, left)
        return member

    async def _wait(self, request: GenerateRequest, seconds: float) -> None:
        """Wait until something moves, for a while.

        Raises:
            Aborted: The request was aborted meanwhile.
        """
        waiting = _Waiting(request, anyio.CancelScope(deadline=anyio.current_time() + seconds))
        self._waiting[waiting] = None
        try:
            with waiting.scope:
                await self._keepers.moved.wait()
        finally:
            del self._waiting[waiting]
        if waiting.aborted is not None:
            raise Aborted(prefix=waiting.aborted)

    def _names(self, chosen: Callable[[Member], bool]) -> frozenset[WorkerId]:
        return frozenset(member.name for member in self._members if chosen(member))


_: type[InferenceControllerPort] = EnginePool


@asynccontextmanager
async def open_pool(
    engines: Mapping[WorkerId, EnginePort],
    *,
    mode: PublishMode = "inflight",
    answer_s: float = 5.0,
    publish_s: float = 60.0,
) -> AsyncGenerator[EnginePool]:
    """Open a pool, whose members are kept while the block runs; see ``EnginePool``."""
    pool = EnginePool(engines, mode=mode, answer_s=answer_s, publish_s=publish_s)
    async with open_tasks() as tasks:
        pool.start(tasks)
        yield pool
        tasks.cancel_scope.cancel()


def _raise_first(errors: Iterable[ConductorError]) -> None:
    for error in errors:
        raise error
