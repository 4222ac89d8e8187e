"""A pool over engines that fail as they are told."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import NamedTuple

import anyio

from backends.engines.pool import EnginePool, open_pool
from protocols.errors import ConductorError, WorkerLost
from protocols.inference import (
    EngineStatus,
    GenerateRequest,
    Generation,
    PublishMode,
    SampleRequest,
    Sampling,
    WeightsManifest,
)
from protocols.messages import PayloadRef, WeightVersion, WorkerId
from tests.support.scripted.engine import ScriptedEngine

A, B, C = WorkerId("rollout/0"), WorkerId("rollout/1"), WorkerId("rollout/2")


class FaultyEngine(ScriptedEngine):
    """Raises, or hangs in, the methods named in ``faults``; a load that fails has paused it before.

    Attributes:
        faults: By method; None hangs.
        called: Every method that was called, in order, with the time.
    """

    def __init__(self, *, token_s: float = 0.01, load_s: float = 0.0) -> None:
        super().__init__(token_s=token_s, load_s=load_s)
        self.faults: dict[str, ConductorError | None] = {}
        self.called: list[tuple[str, float]] = []

    def times(self, method: str) -> list[float]:
        """Return when a method was called."""
        return [at_s for name, at_s in self.called if name == method]

    async def _fault(self, method: str) -> None:
        self.called.append((method, anyio.current_time()))
        if method not in self.faults:
            return
        error = self.faults[method]
        if error is None:
            await anyio.sleep_forever()
        else:
            raise error

    async def status(self) -> EngineStatus:
        """Say."""
        await self._fault("status")
        return await super().status()

    async def generate(self, request: GenerateRequest) -> Generation:
        """Generate."""
        await self._fault("generate")
        return await super().generate(request)

    async def abort(self, prefix: str) -> frozenset[str]:
        """Abort, and then fail."""
        ended = await super().abort(prefix)
        await self._fault("abort")
        return ended

    async def live_requests(self) -> frozenset[str]:
        """Tell."""
        await self._fault("live_requests")
        return await super().live_requests()

    async def load_weights(self, manifest: WeightsManifest) -> WeightVersion:
        """Load."""
        if "load_weights" in self.faults:
            await super().pause()
        await self._fault("load_weights")
        return await super().load_weights(manifest)

    async def pause(self) -> None:
        """Stand still."""
        await self._fault("pause")
        await super().pause()

    async def resume(self) -> None:
        """Go on."""
        await self._fault("resume")
        await super().resume()


class Pool(NamedTuple):
    """A pool over faulty engines, and the engines."""

    port: EnginePool
    engines: dict[WorkerId, FaultyEngine]


@asynccontextmanager
async def open_pool_over(
    *names: WorkerId, token_s: float = 0.01, load_s: float = 0.0, mode: PublishMode = "inflight"
) -> AsyncGenerator[Pool]:
    """Open a pool: an engine has 2 s to answer and 20 s to load, a publish 40 s."""
    engines = {name: FaultyEngine(token_s=token_s, load_s=load_s) for name in names}
    async with open_pool(engines, mode=mode, answer_s=2.0, publish_s=40.0) as port:
        yield Pool(port, engines)


def weights(version: int) -> WeightsManifest:
    """Return weights of a version, which lie nowhere."""
    payload = PayloadRef(owner=f"weights/{version}", key="parameters")
    return WeightsManifest(version=WeightVersion(version), payload=payload, tensors=1, size_bytes=1)


def asks(prefix: str, *, samples: int = 1, max_tokens: int = 10) -> GenerateRequest:
    """Return a request for completions of one prompt."""
    return GenerateRequest(
        prompt_ids=(1, 2, 3),
        samples=tuple(
            SampleRequest(request_id=f"{prefix}{index}/0", stream=f"{prefix}{index}") for index in range(samples)
        ),
        sampling=Sampling(max_tokens=max_tokens),
    )


def dead() -> WorkerLost:
    """Return the error of an engine that is gone."""
    return WorkerLost(worker="somewhere", cause="killed")
