"""Keys and values that old weights computed serve no request of new ones, on any engine of a pool."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import pytest
import torch

from backends.engines import torch as torch_engine
from backends.engines.pool import EnginePool
from backends.models.loading import load_module, named_weights
from backends.sim.payloads import ScriptedPayloads
from protocols.adapters import Host
from protocols.inference import Completion, GenerateRequest, WeightsManifest
from protocols.messages import PayloadRef, WeightVersion, WorkerId
from tests.support.batches import site
from tests.unit.engines.decoding import asks

pytestmark = pytest.mark.real_time

ENGINES = 2


class Served:
    """A pool of torch engines, and the store that their weights come from."""

    def __init__(self, pool: EnginePool, payloads: ScriptedPayloads) -> None:
        self.pool = pool
        self._payloads = payloads

    async def publish(self, version: int) -> None:
        """Publish weights that differ from those of every other version."""
        ref = PayloadRef(owner=f"weights/{version}/", key="parameters")
        held = {name: weight * (1.0 + version) for name, weight in named_weights(load_module(site())).items()}
        await self._payloads.put(ref, held)
        manifest = WeightsManifest(version=WeightVersion(version), payload=ref, tensors=len(held), size_bytes=1)
        receipt = await self.pool.publish(manifest)
        assert len(receipt.confirmed) == ENGINES

    async def ask_all(self, attempt: str) -> list[Completion]:
        """Ask every engine for the same completion of the same prompt."""
        found: dict[str, Completion] = {}

        async def ask(request: GenerateRequest) -> None:
            generation = await self.pool.generate(request)
            found[generation.engine] = generation.completions[0]

        async with anyio.create_task_group() as tasks:
            for number in range(ENGINES):
                tasks.start_soon(ask, asks(f"{attempt}{number}/", [1, 2, 3, 4, 5, 6], max_tokens=6, temperature=0.0))
        assert len(found) == ENGINES
        return list(found.values())


@asynccontextmanager
async def open_pool() -> AsyncGenerator[Served]:
    payloads = ScriptedPayloads()
    host = Host(site=site(), payloads=payloads)
    async with AsyncExitStack() as stack:
        engines = {
            WorkerId(f"rollout/{number}"): await stack.enter_async_context(
                torch_engine.open(torch_engine.Config(), host)
            )
            for number in range(ENGINES)
        }
        yield Served(EnginePool(engines), payloads)


async def test_a_prompt_seen_before_is_answered_as_by_engines_that_never_saw_it() -> None:
    """I26, I27: a prefix cache went on serving keys of old weights, for 17 versions, on some engines and not others."""
    async with open_pool() as used:
        answers: list[Completion] = []
        for version in range(3):
            before = answers
            await used.publish(version)
            answers = await used.ask_all(f"v{version}/")
            assert not before or before[0].logprobs != answers[0].logprobs, "these weights tell nothing apart"
    async with open_pool() as fresh:
        await fresh.publish(2)
        expected = await fresh.ask_all("fresh/")
    for answer in (*answers, *expected[1:]):
        assert answer.token_ids == expected[0].token_ids
        torch.testing.assert_close(torch.tensor(answer.logprobs), torch.tensor(expected[0].logprobs))
        assert {segment.version for segment in answer.segments} == {2}
