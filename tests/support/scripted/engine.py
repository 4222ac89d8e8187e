"""An engine that makes tokens at a scripted pace."""

import random
from collections.abc import Callable

from anyio.lowlevel import checkpoint

from backends.sim.clock import spend
from backends.sim.stoppable import Stoppable
from protocols.aio import Doorbell
from protocols.errors import EngineBusy, EngineStale, PromptTooLong
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

Length = Callable[[SampleRequest], int]


class ScriptedEngine:
    """Makes one token of every live sample each ``token_s``; tokens come from the sample's stream alone.

    Args:
        name: In errors.
        token_s: Seconds a token takes; ``math.inf`` hangs.
        load_s: Seconds that loading weights takes.
        length: Tokens of a sample's completion; None: as many as it may have. One that is shorter than
            it may be ends in a stop token, if the request names one.
        context: Most tokens of prompt and completion.
        queue: Most samples that may be live.
        version: What it serves from the start; None: it is stale until weights are loaded.

    Attributes:
        loaded: Every version that was loaded, in order.
        requests: Every request that was accepted, in order.
    """

    def __init__(
        self,
        *,
        name: str = "scripted",
        token_s: float = 0.01,
        load_s: float = 0.0,
        length: Length | None = None,
        context: int = 4096,
        queue: int = 100_000,
        version: WeightVersion | None = None,
    ) -> None:
        self._name = name
        self._token_s = token_s
        self._load_s = load_s
        self._length = length
        self._context = context
        self._queue = queue
        self._version = version
        self._paused = False
        self._in_token = 0
        self._moved = Doorbell()
        self._work = Stoppable[Generation]()
        self.loaded: list[WeightVersion] = []
        self.requests: list[GenerateRequest] = []

    async def status(self) -> EngineStatus:
        """Return version, live samples, context and whether it is paused."""
        await checkpoint()
        return EngineStatus(
            version=self._version, live=len(self._work.live), context=self._context, paused=self._paused
        )

    async def generate(self, request: GenerateRequest) -> Generation:
        """Generate all samples, one token each at a time."""
        await checkpoint()
        ids = [sample.request_id for sample in request.samples]
        return await self._work.run(ids, lambda: self._play(request))

    async def abort(self, prefix: str) -> frozenset[str]:
        """End requests by prefix and remember it."""
        return await self._work.abort(prefix)

    async def live_requests(self) -> frozenset[str]:
        """Return the ids of samples that are not finished."""
        await checkpoint()
        return self._work.live

    async def load_weights(self, manifest: WeightsManifest) -> WeightVersion:
        """Serve ``manifest.version`` after ``load_s``; a version that is served is not loaded again."""
        await checkpoint()
        if self._version != manifest.version:
            await spend(self._load_s)
            self._version = manifest.version
            self.loaded.append(manifest.version)
        return manifest.version

    async def pause(self) -> None:
        """Begin no token any more; returns when none is being made."""
        self._paused = True
        await checkpoint()
        while self._paused and self._in_token:
            await self._moved.wait()

    async def resume(self) -> None:
        """Go on."""
        await checkpoint()
        self._paused = False
        self._moved.ring()

    async def _play(self, request: GenerateRequest) -> Generation:
        room = self._admit(request)
        self.requests.append(request)
        lengths = [self._ends_at(sample, room) for sample in request.samples]
        versions: list[WeightVersion] = []
        for made in range(max(lengths) + 1):
            for sample, length in zip(request.samples, lengths, strict=True):
                if length == made:
                    self._work.finished(sample.request_id)
            if made < max(lengths):
                versions.append(await self._make_token())
        completions = (
            _complete(request, sample, versions[:length], stopped=length < room)
            for sample, length in zip(request.samples, lengths, strict=True)
        )
        return Generation(completions=tuple(completions))

    def _admit(self, request: GenerateRequest) -> int:
        """Return how many tokens a completion may have; raise where the request cannot be taken."""
        if self._version is None:
            raise EngineStale(engine=self._name)
        if len(self._work.live) > self._queue:
            raise EngineBusy(engine=self._name, waiting=len(self._work.live) - len(request.samples))
        room = min(request.sampling.max_tokens, self._context - len(request.prompt_ids))
        if room < 1:
            raise PromptTooLong(tokens=len(request.prompt_ids), context=self._context)
        return room

    def _ends_at(self, sample: SampleRequest, room: int) -> int:
        return room if self._length is None else min(room, self._length(sample))

    async def _make_token(self) -> WeightVersion:
        while self._paused or self._version is None:
            await self._moved.wait()
        version = self._version
        self._in_token += 1
        try:
            await spend(self._token_s)
        finally:
            self._in_token -= 1
            self._moved.ring()
        return version


def segments_of(versions: list[WeightVersion]) -> tuple[Segment, ...]:
    """Return the runs of equal versions, given the version of each token in order."""
    runs: list[Segment] = []
    for version in versions:
        count = runs.pop().count if runs and runs[-1].version == version else 0
        runs.append(Segment(version=version, count=count + 1))
    return tuple(runs)


def _complete(
    request: GenerateRequest, sample: SampleRequest, versions: list[WeightVersion], *, stopped: bool
) -> Completion:
    stream = random.Random(sample.stream)
    ordinary = [token for token in range(100) if token not in request.stop_token_ids]
    tokens = [stream.choice(ordinary) for _ in versions]
    logprobs = tuple(-stream.random() for _ in versions)
    if stopped and tokens and request.stop_token_ids:
        tokens[-1] = request.stop_token_ids[0]
    return Completion(
        request_id=sample.request_id,
        token_ids=tuple(tokens),
        logprobs=logprobs,
        segments=segments_of(versions),
        finish="stop" if stopped else "length",
    )


_: type[EnginePort] = ScriptedEngine
