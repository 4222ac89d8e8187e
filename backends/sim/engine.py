"""A simulated engine: samples share it, each takes its own time, and a token costs more in larger company.

Nothing is computed for a token. The engine keeps *work*: seconds that a sample takes when it runs alone. All
running samples do work at the same pace, which depends on how many they are, so one number says how much work
each of them has done, and the next sample to finish is the only timer.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache

import anyio
from anyio.lowlevel import checkpoint

from backends.sim.clock import spend
from protocols.backend import PayloadPort
from protocols.errors import Aborted, EngineBusy, EngineStale, InvariantError, PromptTooLong, Transient
from protocols.inference import (
    Completion,
    EnginePort,
    EngineStatus,
    GenerateRequest,
    Generation,
    SampleRequest,
    Segment,
    WeightsManifest,
)
from protocols.messages import WeightVersion

_SLACK_S = 2e-6  # a timer may fire as much too early as the virtual clock's resolution


@dataclass(frozen=True, kw_only=True)
class EngineModel:
    """How fast an engine is.

    Attributes:
        slots: Samples that run at once; the others wait, first come, first served.
        tokens_per_s: Of a sample that runs alone.
        slowdown: Seconds of a token grow by this fraction for every further sample that runs.
        work_s: Stream name of a sample -> its seconds when it runs alone.
        load_s: Version -> seconds that loading it takes; the engine stands still meanwhile.
        context: Most tokens of prompt and completion.
        queue: Most samples that may run or wait.
        hears_cancel: Whether cancelling a call ends what it asked for. Over a network nobody hears it, and
            samples run on until they are finished or aborted.
    """

    slots: int = 256
    tokens_per_s: float = 100.0
    slowdown: float = 0.0
    work_s: Callable[[str], float]
    load_s: Callable[[WeightVersion], float] = lambda _: 0.0
    context: int = 1 << 40
    queue: int = 1 << 40
    hears_cancel: bool = True

    def pace(self, running: int) -> float:
        """Return the work that each of ``running`` samples does in a second."""
        return 1.0 / (1.0 + self.slowdown * (running - 1))


@dataclass(eq=False, slots=True)
class _Sample:
    """One sample.

    Attributes:
        tokens: That it will have.
        began: What the engine's work counter stood at; ``inf`` while it waits.
        marks: Versions that made its tokens up to a number, the last one aside.
    """

    request: SampleRequest
    group: "_Group"
    work_s: float
    tokens: int
    began: float = float("inf")
    marks: list[tuple[WeightVersion, int]] = field(default_factory=list)
    segments: tuple[Segment, ...] | None = None

    def made(self, work: float) -> int:
        """Return the tokens that are there when the work counter stands at ``work``."""
        if self.began > work or self.work_s <= 0:
            return 0
        return min(self.tokens, int((work - self.began) / self.work_s * self.tokens))


@dataclass(eq=False, slots=True)
class _Group:
    """One request: its samples have one fate."""

    request: GenerateRequest
    ended: anyio.Event
    samples: list[_Sample] = field(default_factory=list)
    left: int = 0
    aborted: str | None = None


@dataclass(kw_only=True)
class Usage:
    """What an engine has done.

    Attributes:
        busy_s: Seconds that slots were taken and made tokens, over all slots.
        work_s: What came of them, in seconds of samples that run alone.
        standing_s: Seconds that the engine stood still.
    """

    busy_s: float = 0.0
    work_s: float = 0.0
    standing_s: float = 0.0


class SimEngine:
    """Makes samples as an ``EngineModel`` says.

    Args:
        name: Which engine it is.
        model: How fast it is.
        payloads: Where weights are fetched when they are loaded; None: nowhere.

    Attributes:
        usage: Up to the last event; ``measure`` brings it up to now.
    """

    def __init__(self, name: str, model: EngineModel, payloads: PayloadPort | None = None) -> None:
        self.name = name
        self._model = model
        self._payloads = payloads
        self._version: WeightVersion | None = None
        self._served: WeightVersion | None = None  # the last one, also when it is lost
        self._paused = False
        self._loading = 0
        self._work = 0.0
        self._at = 0.0
        self._running: list[tuple[float, int, _Sample]] = []
        self._waiting: deque[_Sample] = deque()
        self._live: dict[str, _Sample] = {}
        self._aborted: dict[str, None] = {}
        self._started = 0
        self._timer: asyncio.TimerHandle | None = None
        self.usage = Usage()

    async def status(self) -> EngineStatus:
        """Return version, live samples, context and whether it is paused."""
        await checkpoint()
        return EngineStatus(
            version=self._version, live=len(self._live), context=self._model.context, paused=self._paused
        )

    async def generate(self, request: GenerateRequest) -> Generation:
        """Generate all samples; see ``EnginePort.generate``."""
        await checkpoint()
        group = self._take(request)
        try:
            await group.ended.wait()
        finally:
            if group.left and self._model.hears_cancel:
                self._drop(group)
        if group.aborted is not None:
            raise Aborted(prefix=group.aborted)
        return Generation(completions=tuple(_completion(sample) for sample in group.samples))

    async def abort(self, prefix: str) -> frozenset[str]:
        """End requests by prefix and remember it."""
        self._aborted[prefix] = None
        groups = {id(sample.group): sample.group for name, sample in self._live.items() if name.startswith(prefix)}
        ended = frozenset(one.request.request_id for group in groups.values() for one in group.samples)
        ended &= self._live.keys()
        for group in groups.values():
            group.aborted = prefix
            self._drop(group)
            group.ended.set()
        await checkpoint()
        return ended

    async def live_requests(self) -> frozenset[str]:
        """Return the ids of samples that are not finished."""
        await checkpoint()
        return self.live

    @property
    def live(self) -> frozenset[str]:
        """The ids of samples that run or wait."""
        return frozenset(self._live)

    async def load_weights(self, manifest: WeightsManifest) -> WeightVersion:
        """Fetch and serve ``manifest.version``; what runs stands still meanwhile and goes on under it."""
        await checkpoint()
        if self._version == manifest.version:
            return manifest.version
        self._advance()
        self._loading += 1
        try:
            if self._payloads is not None:
                weights = await self._payloads.get(manifest.payload)
                if weights != {"version": float(manifest.version)}:
                    raise Transient(f"the weights of v{manifest.version} are damaged")
            await spend(self._model.load_s(manifest.version))
            self._swap(manifest.version)
        finally:
            self._advance()
            self._loading -= 1
            self._go_on()
        return manifest.version

    async def pause(self) -> None:
        """Stand still."""
        self._advance()
        self._paused = True
        self._go_on()
        await checkpoint()

    async def resume(self) -> None:
        """Go on."""
        await checkpoint()
        self._advance()
        self._paused = False
        self._go_on()

    def lose_weights(self) -> None:
        """Serve nothing until weights are loaded; what runs stands still."""
        self._advance()
        self._version = None
        self._go_on()

    def measure(self) -> Usage:
        """Return what it has done until now."""
        self._advance()
        return replace(self.usage)

    def close(self) -> None:
        """Forget everything: the engine is gone, and so is what it ran."""
        self._advance()
        self._live.clear()
        self._running.clear()
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _take(self, request: GenerateRequest) -> _Group:
        """Let a request in; raise where it cannot be taken."""
        ids = [sample.request_id for sample in request.samples]
        for one in ids if self._aborted else ():
            if prefix := next((one[:end] for end in range(len(one) + 1) if one[:end] in self._aborted), None):
                raise Aborted(prefix=prefix)
        if twice := self._live.keys() & set(ids):
            raise InvariantError(f"these run already: {', '.join(sorted(twice))}")
        if self._version is None:
            raise EngineStale(engine=self.name)
        if len(self._live) + len(ids) > self._model.queue:
            raise EngineBusy(engine=self.name, waiting=len(self._live))
        room = min(request.sampling.max_tokens, self._model.context - len(request.prompt_ids))
        if room < 1:
            raise PromptTooLong(tokens=len(request.prompt_ids), context=self._model.context)
        group = _Group(request, anyio.Event())
        self._advance()
        for one in request.samples:
            work_s = self._model.work_s(one.stream)
            tokens = max(1, round(work_s * self._model.tokens_per_s))
            if tokens > room:
                work_s, tokens = work_s * room / tokens, room
            sample = _Sample(one, group, work_s, tokens)
            group.samples.append(sample)
            self._waiting.append(sample)
            self._live[one.request_id] = sample
        group.left = len(group.samples)
        self._go_on()
        return group

    @property
    def _standing(self) -> bool:
        return self._paused or self._loading > 0 or self._version is None

    def _advance(self) -> None:
        """Let the time since the last event count."""
        now = asyncio.get_running_loop().time()  # in a timer there is no task, by which anyio would know its loop
        passed, self._at = now - self._at, now
        if passed > 0:
            if self._standing:
                self.usage.standing_s += passed
            elif running := len(self._running):
                done = passed * self._model.pace(running)
                self._work += done
                self.usage.work_s += done * running
                self.usage.busy_s += passed * running

    def _go_on(self) -> None:
        """Finish what is done, fill the slots, and be woken when the next sample is done."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._standing:
            return
        pace = self._model.pace(max(1, len(self._running)))
        while self._running and self._running[0][0] <= self._work + _SLACK_S * pace:
            self._finish(heapq.heappop(self._running)[2])
        while self._waiting and len(self._running) < self._model.slots:
            sample = self._waiting.popleft()
            sample.began = self._work
            self._started += 1
            heapq.heappush(self._running, (self._work + sample.work_s, self._started, sample))
        if self._running:
            left = max(0.0, self._running[0][0] - self._work)
            due = self._at + left / self._model.pace(len(self._running))
            self._timer = asyncio.get_running_loop().call_at(due, self._tick)

    def _tick(self) -> None:
        self._advance()
        self._go_on()

    def _finish(self, sample: _Sample) -> None:
        sample.segments = self._segments(sample)
        del self._live[sample.request.request_id]
        sample.group.left -= 1
        if sample.group.left == 0:
            sample.group.ended.set()

    def _swap(self, version: WeightVersion) -> None:
        """Serve other weights; what was made until now was made by the old ones."""
        self._advance()
        before = self._served
        if before is not None:
            for _, _, sample in self._running:
                sample.marks.append((before, sample.made(self._work)))
        self._version = self._served = version

    def _segments(self, sample: _Sample) -> tuple[Segment, ...]:
        assert self._version is not None
        counted, segments = 0, []
        for version, made in [*sample.marks, (self._version, sample.tokens)]:
            if made > counted:
                segments.append(Segment(version=version, count=made - counted))
                counted = made
        return tuple(segments)

    def _drop(self, group: _Group) -> None:
        """Take the samples of a group out, wherever they are."""
        self._advance()
        group.left = 0
        for sample in group.samples:
            self._live.pop(sample.request.request_id, None)
        self._waiting = deque(sample for sample in self._waiting if sample.group is not group)
        self._running = [entry for entry in self._running if entry[2].group is not group]
        heapq.heapify(self._running)
        self._go_on()


@lru_cache(maxsize=1 << 14)
def _same(value: float, count: int) -> tuple[float, ...]:
    return (value,) * count


def _completion(sample: _Sample) -> Completion:
    """Return a sample's completion: all of its tokens are 0, but the one that ends it."""
    request = sample.group.request
    length = sample.tokens
    stops = request.stop_token_ids and length < request.sampling.max_tokens
    ordinary: tuple[int, ...] = _same(0, length - bool(stops))  # pyright: ignore[reportAssignmentType]
    return Completion(
        request_id=sample.request.request_id,
        token_ids=(*ordinary, request.stop_token_ids[0]) if stops else ordinary,
        logprobs=_same(-1.0, length),
        segments=sample.segments or (),
        finish="stop" if stops else "length",
    )


_: type[EnginePort] = SimEngine
