"""What the torch engine does beyond the contract of every engine."""

import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import anyio
import pytest
import torch

from backends.engines import torch as torch_engine
from backends.models.loading import load_module, named_weights
from backends.sim.payloads import ScriptedPayloads
from protocols.adapters import Host
from protocols.errors import BadPrompt, EngineBusy, InvariantError, Transient, UserError, WorkerLost
from protocols.inference import EnginePort, GenerateRequest, WeightsManifest
from protocols.messages import PayloadRef, WeightVersion
from protocols.sections import Section, Site
from tests.support.batches import GPT2, site
from tests.support.texts import exactly
from tests.unit.engines.decoding import asks

pytestmark = pytest.mark.real_time


class Opened(NamedTuple):
    """An engine and the store that its weights come from."""

    engine: EnginePort
    payloads: ScriptedPayloads

    async def load(self, version: int, held: dict[str, torch.Tensor] | None = None) -> WeightVersion:
        """Put weights, the model's own where none are given, and load them."""
        ref = PayloadRef(owner=f"weights/{version}", key="parameters")
        await self.payloads.put(ref, named_weights(load_module(site())) if held is None else held)
        return await self.engine.load_weights(
            WeightsManifest(version=WeightVersion(version), payload=ref, tensors=1, size_bytes=1)
        )


@asynccontextmanager
async def opened(cfg: torch_engine.Config | None = None, model: Section = GPT2) -> AsyncGenerator[Opened]:
    payloads = ScriptedPayloads()
    host = Host(site=site(model), payloads=payloads)
    async with torch_engine.open(cfg or torch_engine.Config(), host) as engine:
        yield Opened(engine, payloads)


@pytest.mark.parametrize("prompt", [(), (-1,), (12,), (1, 2, 10**12)])
async def test_a_prompt_of_strange_tokens_harms_itself_only(prompt: tuple[int, ...]) -> None:
    """An index outside the embedding would end the engine's thread, and with it everybody's requests (W17)."""
    async with opened() as it:
        await it.load(0)
        with pytest.raises(BadPrompt):
            await it.engine.generate(asks("a/", prompt))
        await it.engine.generate(asks("b/", [1, 2]))


@pytest.mark.parametrize("law", [{"max_tokens": 0}, {"temperature": -1.0}, {"top_p": 0.0}, {"top_k": -1}])
async def test_sampling_that_makes_no_sense_is_refused(law: dict[str, Any]) -> None:
    async with opened() as it:
        await it.load(0)
        with pytest.raises(UserError, match=exactly("no tokens can be drawn by Sampling(...)")):
            await it.engine.generate(asks("a/", [1], **law))


async def test_an_id_that_is_live_already_is_refused() -> None:
    async with opened() as it:
        await it.load(0)
        await it.engine.pause()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(it.engine.generate, asks("a/", [1]))
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(InvariantError):
                await it.engine.generate(asks("a/", [1]))
            await it.engine.resume()


async def test_a_full_queue_is_said_and_empties() -> None:
    async with opened(torch_engine.Config(slots=2, max_waiting=3)) as it:
        await it.load(0)
        await it.engine.pause()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(it.engine.generate, asks("a/", [1], samples=5))
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(EngineBusy) as caught:
                await it.engine.generate(asks("b/", [1]))
            assert caught.value.waiting == 3
            await it.engine.resume()
        await it.engine.generate(asks("b/", [1]))


async def test_weights_that_do_not_fit_leave_the_old_ones_serving() -> None:
    async with opened() as it:
        await it.load(0)
        before = await it.engine.generate(asks("a/", [1, 2]))
        weights = named_weights(load_module(site()))
        name = next(iter(weights))
        misfits = [
            {**weights, name: weights[name][:-1]},
            {**weights, name: weights[name].double()},
            {**weights, name: weights[name].numpy()},
            {key: weight for key, weight in weights.items() if key != name},
            {**weights, "more": weights[name]},
        ]
        for version, misfit in enumerate(misfits, start=1):
            other = {key: weight * 2 if isinstance(weight, torch.Tensor) else weight for key, weight in misfit.items()}
            with pytest.raises(InvariantError):
                await it.load(version, other)
            assert (await it.engine.status()).version == 0
        assert await it.engine.generate(asks("a/", [1, 2])) == before


async def test_weights_that_are_gone_are_not_a_lost_engine() -> None:
    """The pool gives up an engine that says ``WorkerLost``."""
    async with opened() as it:
        ref = PayloadRef(owner="nobody", key="parameters")
        with pytest.raises(Transient) as caught:
            await it.engine.load_weights(
                WeightsManifest(version=WeightVersion(1), payload=ref, tensors=1, size_bytes=1)
            )
        assert not isinstance(caught.value, WorkerLost)
        await it.load(0)


async def test_a_crash_fails_every_waiting_request_and_every_later_call() -> None:
    """SkyRL PR#1691: the engine was gone and the workers stayed blocked (I03)."""
    errors: list[WorkerLost] = []

    async def collect(engine: EnginePort, request: GenerateRequest) -> None:
        try:
            await engine.generate(request)
        except WorkerLost as exc:
            errors.append(exc)

    async with opened() as it:
        nan = {name: torch.full_like(weight, torch.nan) for name, weight in named_weights(load_module(site())).items()}
        await it.load(0, nan)
        async with anyio.create_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(collect, it.engine, asks(f"{number}/", [1, 2]))
        assert len(errors) == 3
        assert all("not finite" in error.cause for error in errors)
        for call in (it.engine.status, it.engine.live_requests, it.engine.pause, lambda: it.engine.abort("a/")):
            with pytest.raises(WorkerLost):
                await call()
        with pytest.raises(WorkerLost):
            await it.engine.generate(asks("a/", [1]))
        with pytest.raises(WorkerLost):
            await it.load(1)


async def test_closing_fails_what_still_runs() -> None:
    async def generate(engine: EnginePort) -> None:
        with pytest.raises(WorkerLost, match="closed"):
            await engine.generate(asks("a/", [1]))

    async with anyio.create_task_group() as tasks, opened() as it:
        await it.load(0)
        await it.engine.pause()
        tasks.start_soon(generate, it.engine)  # noqa: ASYNC111 - that it outlives the engine is the point
        await anyio.wait_all_tasks_blocked()


async def test_the_loop_answers_while_tokens_are_being_made() -> None:
    async with opened() as it, anyio.create_task_group() as tasks:
        await it.load(0)
        tasks.start_soon(it.engine.generate, asks("a/", [1], samples=64, max_tokens=60))
        await anyio.wait_all_tasks_blocked()
        assert (await it.engine.status()).live > 0
        await it.engine.abort("nothing/")


async def test_a_context_beyond_the_models_is_refused() -> None:
    with pytest.raises(UserError, match=r"engine\.context = 65: the model was made for 64 tokens"):
        async with opened(torch_engine.Config(context=65)):
            pass


async def test_attention_that_the_cache_cannot_serve_is_refused() -> None:
    """A window of attention that is not kept would give log-probabilities of another model."""
    options = {
        "architecture": "mistral",
        "vocabulary": "0123456789",
        "config": {
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": 64,
            "sliding_window": 8,
        },
    }
    model = Section(kind="scratch", options=options)
    with pytest.raises(UserError, match="last 8 tokens"):
        async with opened(model=model):
            pass
    async with opened(torch_engine.Config(context=8), model):
        pass


def test_a_job_without_a_model_is_a_problem() -> None:
    [problem] = torch_engine.check(torch_engine.Config(), Site(job_dir="/"))
    assert str(problem) == "model: the torch engine needs a model; add a section [model]"
    assert torch_engine.check(torch_engine.Config(), site()) == []


def test_the_adapter_imports_without_torch() -> None:
    """``conductor validate`` and ``import conductor`` stay fast."""
    script = (
        "import sys, backends.engines.torch, backends.engines.pool, backends.models.scratch;"
        "import backends.models.pretrained;"
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'numpy')))"
    )
    subprocess.run([sys.executable, "-c", script], check=True)  # noqa: S603 - our own script
