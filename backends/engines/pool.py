"""Many engines behind one inference controller: routing, versions, aborts."""

from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Literal

import anyio
import msgspec
import structlog
from anyio.lowlevel import checkpoint

from backends.engines._loads import Loads
from protocols.aio import Doorbell, bounded_shield, deadline, owned
from protocols.errors import ConductorError, EngineStale, Stalled, Transient, WorkerLost
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
class _Member:
    """One engine.

    Attributes:
        confirmed: The version that it said it serves when it was last published to; None: stale.
        lost: Whether it did not answer the last time.
        samples: Of the requests that it works on.
    """

    name: WorkerId
    engine: EnginePort
    confirmed: WeightVersion | None = None
    lost: bool = False
    samples: int = 0

    def lose(self) -> None:
        self.lost = True
        self.confirmed = None


class _Gate:
    """What admits requests, and what publishing and pausing shut.

    Between passing and the call that follows nothing else runs, so no request slips in behind it.
    """

    def __init__(self) -> None:
        self._shut: set[Literal["publish", "pause"]] = set()
        self._bell = Doorbell()

    async def pass_through(self) -> None:
        await checkpoint()
        while self._shut:
            await self._bell.wait()

    def shut(self, by: Literal["publish", "pause"]) -> None:
        self._shut.add(by)

    def open(self, by: Literal["publish", "pause"]) -> None:
        self._shut.discard(by)
        self._bell.ring()

    @contextmanager
    def shut_during_publish(self) -> Generator[None]:
        self.shut("publish")
        try:
            yield
        finally:
            self.open("publish")


class EnginePool:
    """Sends each request to the member with the fewest samples among those that serve confirmed weights.

    Requests wait while weights are published or the pool is paused; those that run go on during a publish, stand still,
    or are waited for.
    What an engine does not answer within ``answer_s`` counts as not answered. ``WorkerLost`` is an answer:
    the engine is gone, and with it whatever it ran.

    Args:
        engines: By member.
        mode: What a publish does with the requests that run.
        answer_s: Seconds within which an engine answers a probe, an abort or a resume; below the deadline
            that the caller has for its abort, so that one silent engine does not hide what the others said.
    """

    def __init__(
        self, engines: Mapping[WorkerId, EnginePort], *, mode: PublishMode = "inflight", answer_s: float = 5.0
    ) -> None:
        self._members = [_Member(name, engine) for name, engine in engines.items()]
        self._loads = Loads(self._members)
        self._mode: PublishMode = mode
        self._answer_s = answer_s
        self._gate = _Gate()
        self._quieter = Doorbell()
        self._paused = False
        self._changing = anyio.Lock()  # one publish or probe at a time: each decides from what all confirmed

    async def endpoint(self) -> str:
        """Return a name: executors are handed the pool itself."""
        await checkpoint()
        return "pool"

    async def prepare_rollout(self) -> Readiness:
        """Probe every engine; one that answers again is stale until it is published to."""
        found: dict[WorkerId, EngineStatus] = {}

        async def probe(member: _Member) -> None:
            with deadline(f"probe of {member.name}", self._answer_s):
                found[member.name] = await member.engine.status()

        await checkpoint()
        async with self._changing:
            failures = await self._each("probe", self._members, probe)
            for member in self._members:
                self._learn(member, found.get(member.name), failures.get(member.name))
            if len(failures) == len(self._members):
                raise Stalled(f"no engine answers: {_listed(failures)}")
            await self.resume()
        return Readiness(
            members=self._names(lambda member: member.confirmed is not None),
            stale=self._names(lambda member: member.confirmed is None and not member.lost),
            lost=self._names(lambda member: member.lost),
        )

    async def generate(self, request: GenerateRequest) -> Generation:
        """Generate on one engine. A member that turns out to be lost or stale gets no more requests."""
        await self._gate.pass_through()
        member = self._least_loaded()
        self._shift(member, len(request.samples))
        try:
            generation = await member.engine.generate(request)
        except WorkerLost as exc:
            member.lose()
            raise WorkerLost(worker=member.name, cause=exc.cause) from exc
        except EngineStale as exc:
            member.confirmed = None
            raise EngineStale(engine=member.name) from exc
        finally:
            self._shift(member, -len(request.samples))
            self._quieter.ring()
        return msgspec.structs.replace(generation, engine=member.name)

    async def abort(self, prefix: str) -> AbortReport:
        """Abort on all engines at once, then ask each what still lives.

        Takes at most ``answer_s``; engines that do not answer are reported by name.
        """
        confirmed: set[str] = set()
        unconfirmed: set[str] = set()

        async def abort(member: _Member) -> None:
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

        async def ask(member: _Member) -> None:
            live.update(await member.engine.live_requests())

        failures = await self._each("live requests", self._members, ask)
        _raise_first(error for error in failures.values() if not isinstance(error, WorkerLost))
        return frozenset(live)

    async def publish(self, manifest: WeightsManifest) -> PublishReceipt:
        """Load into all members at once that have not confirmed; new requests wait meanwhile.

        Members that fail are resumed before this ends, however it ends: their running requests would
        stand still for ever where loading had paused them.
        """
        await checkpoint()
        async with self._changing:
            with self._gate.shut_during_publish():
                failures = await self._reload(manifest)
        confirmed = self._names(lambda member: member.confirmed == manifest.version)
        if not confirmed:
            raise Stalled(f"no engine confirmed version {manifest.version}: {_listed(failures)}")
        stale = self._names(lambda member: member.confirmed != manifest.version)
        return PublishReceipt(version=manifest.version, confirmed=confirmed, stale=stale)

    async def versions(self) -> dict[WorkerId, WeightVersion | None]:
        """Return what each member confirmed last."""
        await checkpoint()
        return {member.name: member.confirmed for member in self._members}

    async def statuses(self) -> dict[WorkerId, EngineStatus | None]:
        """Ask every member, for at most ``answer_s``; whoever only watches marks none as lost."""
        found: dict[WorkerId, EngineStatus | None] = {member.name: None for member in self._members}

        async def ask(member: _Member) -> None:
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
        self._gate.shut("pause")
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
            await self._resume([member for member in self._members if not member.lost])
        finally:
            self._gate.open("pause")

    async def _reload(self, manifest: WeightsManifest) -> dict[WorkerId, ConductorError]:
        if self._mode == "drain":
            while any(member.samples for member in self._members):
                await self._quieter.wait()
        if self._mode != "interrupt" or self._paused:
            return await self._load(manifest)
        members = [member for member in self._members if not member.lost]
        try:
            await self._each("pause", members, lambda member: member.engine.pause())
            return await self._load(manifest)
        finally:
            if not self._paused:
                await self._resume([member for member in members if not member.lost])  # noqa: ASYNC102 - shielded there

    async def _load(self, manifest: WeightsManifest) -> dict[WorkerId, ConductorError]:
        async def load(member: _Member) -> None:
            served = await member.engine.load_weights(manifest)
            if served != manifest.version:
                raise Transient(f"it serves {served} after {manifest.version} was loaded")
            member.confirmed = served

        targets = [member for member in self._members if not member.lost and member.confirmed != manifest.version]
        for member in targets:
            member.confirmed = None  # until it says otherwise: a load that is cut off may have happened
        try:
            return await self._each("load weights", targets, load)
        finally:
            failed = [member for member in targets if member.confirmed is None and not member.lost]
            if failed and not self._paused:
                await self._resume(failed)  # noqa: ASYNC102 - shielded there, with a deadline

    async def _resume(self, members: Iterable[_Member]) -> None:
        async def resume(member: _Member) -> None:
            with deadline(f"resume of {member.name}", self._answer_s):
                await member.engine.resume()

        with bounded_shield(2 * self._answer_s):  # the deadlines above come first, and say who is silent
            for name in await self._each("resume", members, resume):
                next(member for member in self._members if member.name == name).confirmed = None

    async def _each(
        self, what: str, members: Iterable[_Member], call: Callable[[_Member], Awaitable[None]]
    ) -> dict[WorkerId, ConductorError]:
        """Call members at once; return what failed, after marking those that are lost."""
        failures: dict[WorkerId, ConductorError] = {}

        async def one(member: _Member) -> None:
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

    def _learn(self, member: _Member, status: EngineStatus | None, failure: ConductorError | None) -> None:
        if failure is not None:
            member.lose()
            return
        member.lost = False
        if status is not None and status.version != member.confirmed:
            member.confirmed = None  # restarted, or loaded by somebody else

    def _least_loaded(self) -> _Member:
        member = next((member for member in self._loads if member.confirmed is not None), None)
        if member is None:
            raise EngineStale(engine=", ".join(member.name for member in self._members))
        return member

    def _shift(self, member: _Member, samples: int) -> None:
        member.samples += samples
        self._loads.put(member, member.samples)

    def _names(self, chosen: Callable[[_Member], bool]) -> frozenset[WorkerId]:
        return frozenset(member.name for member in self._members if chosen(member))


_: type[InferenceControllerPort] = EnginePool


def _raise_first(errors: Iterable[ConductorError]) -> None:
    for error in errors:
        raise error


def _listed(failures: Mapping[WorkerId, ConductorError]) -> str:
    return "; ".join(f"{name}: {error}" for name, error in failures.items()) or "there is none"
