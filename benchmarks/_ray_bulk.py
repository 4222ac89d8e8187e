"""Who puts 256 MiB and who fetches them: as workloads behind the ports, and as bare actors of Ray."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import ray

from benchmarks._instant import InstantEngine
from protocols.adapters import Host
from protocols.backend import PayloadPort
from protocols.errors import Problem
from protocols.inference import WeightsManifest
from protocols.messages import Message, PayloadRef, WeightVersion
from protocols.sections import Site
from protocols.training import StageRequest

ARRAYS, ARRAY_BYTES = 16, 16 << 20
SIZE_BYTES = ARRAYS * ARRAY_BYTES
STORE_BYTES = 2 << 30


def touch_store() -> None:
    """Fill most of the store and let go of it: a process's first touch of memory costs four times what a copy does."""
    held = [ray.put(bytes(ARRAY_BYTES)) for _ in range(STORE_BYTES * 3 // 4 // ARRAY_BYTES)]
    del held


class Config(Message, frozen=True, kw_only=True):
    """No options."""


def check(cfg: Config, site: Site) -> Sequence[Problem]:
    """Find nothing wrong."""
    del cfg, site
    return ()


class BulkTrainer:
    """Stages two sets of weights in turn, no array of which is as it was before."""

    def __init__(self, payloads: PayloadPort) -> None:
        import torch  # noqa: PLC0415 - the worker's

        touch_store()
        self._payloads = payloads
        self._version = 0
        self._sets = [
            {f"w{number}": torch.full((ARRAY_BYTES // 4,), value) for number in range(ARRAYS)} for value in (1.0, 2.0)
        ]

    async def stage_weights(self, request: StageRequest) -> WeightsManifest:
        """Put the next set."""
        self._version += 1
        version, ref = WeightVersion(self._version), PayloadRef(owner=request.owner, key="weights")
        await self._payloads.put(ref, self._sets[version % 2])
        return WeightsManifest(version=version, payload=ref, tensors=ARRAYS, size_bytes=SIZE_BYTES)


class BulkEngine(InstantEngine):
    """Fetches weights, and does nothing with them."""

    def __init__(self, payloads: PayloadPort) -> None:
        super().__init__()
        self._payloads = payloads

    async def load_weights(self, manifest: WeightsManifest) -> WeightVersion:
        """Fetch."""
        weights = await self._payloads.get(manifest.payload)
        assert isinstance(weights, dict)
        assert len(weights) == ARRAYS
        return manifest.version


@asynccontextmanager
async def _open_trainer(cfg: Config, host: Host) -> AsyncGenerator[BulkTrainer]:
    del cfg
    yield BulkTrainer(host.payloads)


@asynccontextmanager
async def _open_engine(cfg: Config, host: Host) -> AsyncGenerator[BulkEngine]:
    del cfg
    yield BulkEngine(host.payloads)


TRAINER = SimpleNamespace(Config=Config, check=check, open=_open_trainer)
ENGINE = SimpleNamespace(Config=Config, check=check, open=_open_engine)


class BareTrainer:
    """Puts the same bytes as one object."""

    def __init__(self) -> None:
        import numpy  # noqa: ICN001, PLC0415 - the worker's

        touch_store()
        self._calls = 0
        self._sets = [
            {f"w{number}": numpy.full(ARRAY_BYTES // 4, value, dtype="float32") for number in range(ARRAYS)}
            for value in (1.0, 2.0)
        ]

    def put(self) -> list[Any]:
        """Put the next set; the reference comes in a list, for else Ray would hand over what it holds."""
        self._calls += 1
        return [ray.put(self._sets[self._calls % 2])]


class BareEngine:
    """Answers, and fetches."""

    async def status(self, question: bytes) -> bytes:
        """Return what it was given."""
        return question

    async def get(self, held: list[Any]) -> int:
        """Return how many arrays an object holds."""
        return len(await held[0])
