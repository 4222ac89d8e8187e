"""What every engine keeps to, in process and with each of its messages encoded and decoded."""

import os
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial

import anyio
import pytest

from backends.engines import torch as torch_engine
from backends.sim.engine import EngineModel, SimEngine
from backends.sim.payloads import ScriptedPayloads
from protocols.adapters import Host, resolve
from protocols.errors import Aborted, ConductorError, EngineStale, PromptTooLong
from protocols.inference import (
    EnginePort,
    GenerateRequest,
    Generation,
    SampleRequest,
    Sampling,
    WeightsManifest,
)
from protocols.messages import PayloadRef, WeightVersion
from protocols.sections import Section
from tests.support.batches import GPT2, site
from tests.support.scripted.engine import ScriptedEngine
from tests.support.wired import wired

CONTEXT = 64
STOP = 11
VLLM_MODEL = Section(
    kind="scratch",
    options={
        "architecture": "llama",
        "config": {
            "hidden_size": 64,
            "intermediate_size": 64,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,  # of 32 each, the smallest that vLLM has on a CPU
            "max_position_embeddings": CONTEXT,
        },
        "vocabulary": "0123456789+.",
        "end": ".",
    },
)
OpenEngine = Callable[[], AbstractAsyncContextManager[EnginePort]]
"""An engine whose payload store holds weights for every manifest that ``weights`` makes."""


async def _published(model: Section) -> ScriptedPayloads:
    from backends.models.loading import load_module, named_weights  # noqa: PLC0415 - torch is heavy

    payloads = ScriptedPayloads()
    held = named_weights(load_module(site(model)))
    for version in range(3):
        await payloads.put(weights(version).payload, held)
    return payloads


@asynccontextmanager
async def _torch() -> AsyncGenerator[EnginePort]:
    host = Host(site=site(), payloads=await _published(GPT2))
    async with torch_engine.open(torch_engine.Config(), host) as engine:
        yield engine


@asynccontextmanager
async def _over_http(kind: str, *, servers: int = 1, weights: str = "file") -> AsyncGenerator[EnginePort]:
    """Our own servers and our own client of one interface; before several a real router."""
    pytest.importorskip("h11")
    pytest.importorskip("httpx2")
    from tests.support.http_engines import open_test_server  # noqa: PLC0415 - torch is heavy
    from tests.support.routers import open_router  # noqa: PLC0415 - as above

    async with AsyncExitStack() as stack:
        urls = tuple([await stack.enter_async_context(open_test_server(kind)) for _ in range(servers)])
        router = await stack.enter_async_context(open_router(kind, urls)) if servers > 1 else None
        adapter = resolve("engine", kind)
        host = Host(site=site(), payloads=await _published(GPT2))
        yield await stack.enter_async_context(
            adapter.open(adapter.Config(urls=urls, router=router, weights=weights), host)
        )


_vllm = partial(_over_http, "vllm")
_sent_vllm = partial(_over_http, "vllm", weights="gloo")
_sglang = partial(_over_http, "sglang")
_sent_sglang = partial(_over_http, "sglang", weights="gloo")
_routed_vllm = partial(_over_http, "vllm", servers=2)
_routed_sglang = partial(_over_http, "sglang", servers=2)
real = [
    pytest.mark.real_time,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif("CONDUCTOR_VLLM" not in os.environ, reason="make test-vllm prepares a server"),
]
routed = [
    pytest.mark.real_time,
    pytest.mark.slow,
    pytest.mark.skipif("CONDUCTOR_ROUTERS" not in os.environ, reason="make test-routers installs the routers"),
]


@asynccontextmanager
async def _real_vllm(url: str) -> AsyncGenerator[EnginePort]:
    host = Host(site=site(VLLM_MODEL), payloads=await _published(VLLM_MODEL))
    adapter = resolve("engine", "vllm")
    async with adapter.open(adapter.Config(urls=(url,)), host) as engine:
        yield engine


@pytest.fixture(scope="module")
def vllm_url(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """One server for all tests: each attaches anew."""
    from tests.support.vllm_servers import running_server, save_model  # noqa: PLC0415 - torch is heavy

    model = save_model(VLLM_MODEL, tmp_path_factory.mktemp("model"))
    with running_server("--max-model-len", str(CONTEXT), model=model) as url:
        yield url


@asynccontextmanager
async def _scripted() -> AsyncGenerator[EnginePort]:
    yield ScriptedEngine(context=CONTEXT)


@asynccontextmanager
async def _simulated() -> AsyncGenerator[EnginePort]:
    yield SimEngine("simulated", EngineModel(context=CONTEXT, work_s=lambda _: 0.5))


@pytest.fixture(
    params=[
        pytest.param(_torch, id="torch", marks=pytest.mark.real_time),
        pytest.param(wired(EnginePort, _torch), id="torch-wired", marks=pytest.mark.real_time),
        pytest.param(_vllm, id="vllm", marks=pytest.mark.real_time),
        pytest.param(wired(EnginePort, _vllm), id="vllm-wired", marks=pytest.mark.real_time),
        pytest.param(_sent_vllm, id="vllm-broadcast", marks=pytest.mark.real_time),
        pytest.param(_sglang, id="sglang", marks=pytest.mark.real_time),
        pytest.param(wired(EnginePort, _sglang), id="sglang-wired", marks=pytest.mark.real_time),
        pytest.param(_sent_sglang, id="sglang-broadcast", marks=pytest.mark.real_time),
        pytest.param("vllm_url", id="vllm-server", marks=real),
        pytest.param(_routed_vllm, id="vllm-router", marks=routed),
        pytest.param(_routed_sglang, id="sglang-router", marks=routed),
        pytest.param(_scripted, id="scripted"),
        pytest.param(wired(EnginePort, _scripted), id="scripted-wired"),
        pytest.param(_simulated, id="simulated"),
        pytest.param(wired(EnginePort, _simulated), id="simulated-wired"),
    ]
)
def open_engine(request: pytest.FixtureRequest) -> OpenEngine:
    if isinstance(request.param, str):
        return partial(_real_vllm, request.getfixturevalue(request.param))
    return request.param


def weights(version: int) -> WeightsManifest:
    payload = PayloadRef(owner=f"weights/{version}", key="parameters")
    return WeightsManifest(version=WeightVersion(version), payload=payload, tensors=1, size_bytes=1)


def asks(prefix: str, *, samples: int = 2, max_tokens: int = 8, prompt: int = 4) -> GenerateRequest:
    return GenerateRequest(
        prompt_ids=tuple(token % 10 for token in range(prompt)),
        samples=tuple(
            SampleRequest(request_id=f"{prefix}{index}/0", stream=f"0/0/{index}/0") for index in range(samples)
        ),
        sampling=Sampling(max_tokens=max_tokens),
        stop_token_ids=(STOP,),
    )


class Outcomes:
    """What became of requests that ran beside the test."""

    def __init__(self) -> None:
        self.generations: list[Generation] = []
        self.errors: list[ConductorError] = []

    async def collect(self, engine: EnginePort, request: GenerateRequest) -> None:
        try:
            self.generations.append(await engine.generate(request))
        except ConductorError as exc:
            self.errors.append(exc)


@asynccontextmanager
async def standing_still(engine: EnginePort, *requests: GenerateRequest) -> AsyncGenerator[Outcomes]:
    """Pause a loaded engine, send it requests, and wait at the end until each has its fate."""
    await engine.load_weights(weights(0))
    await engine.pause()
    outcomes = Outcomes()
    async with anyio.create_task_group() as tasks:
        for request in requests:
            tasks.start_soon(outcomes.collect, engine, request)
        await anyio.wait_all_tasks_blocked()
        yield outcomes
        await engine.resume()


async def test_an_engine_without_weights_is_stale(open_engine: OpenEngine) -> None:
    async with open_engine() as engine:
        assert (await engine.status()).version is None
        with pytest.raises(EngineStale):
            await engine.generate(asks("p.1/L0/0/"))
        assert await engine.live_requests() == frozenset()


async def test_completions_come_in_order_and_account_for_every_token(open_engine: OpenEngine) -> None:
    """verl#7568: samples without a version stamp make the age metric wrong, so the stamp is mandatory (I31)."""
    async with open_engine() as engine:
        await engine.load_weights(weights(0))
        request = asks("p.1/L0/0/", samples=5)
        generation = await engine.generate(request)
        assert [done.request_id for done in generation.completions] == [one.request_id for one in request.samples]
        for done in generation.completions:
            length = len(done.token_ids)
            assert len(done.logprobs) == length
            assert all(logprob <= 0 for logprob in done.logprobs)
            assert [(one.version, one.count) for one in done.segments] == [(0, length)]
            assert STOP not in done.token_ids[:-1]
            assert (done.finish == "stop") == (done.token_ids[-1] == STOP)
            assert length == 8 or done.finish == "stop"
        assert await engine.live_requests() == frozenset()


async def test_a_stream_draws_the_same_tokens_whoever_asks(open_engine: OpenEngine) -> None:
    """A readmitted group draws what its first attempt drew."""
    async with open_engine() as engine:
        await engine.load_weights(weights(0))
        first = await engine.generate(asks("p.1/L0/0/"))
        again = await engine.generate(asks("p.1/L9/3/"))
        assert [one.token_ids for one in first.completions] == [one.token_ids for one in again.completions]


async def test_a_completion_ends_with_the_context(open_engine: OpenEngine) -> None:
    async with open_engine() as engine:
        await engine.load_weights(weights(0))
        context = (await engine.status()).context
        assert context == CONTEXT
        request = asks("p.1/L0/0/", prompt=context - 3, max_tokens=100)
        for done in (await engine.generate(request)).completions:
            assert len(done.token_ids) == 3 or done.finish == "stop"


async def test_a_prompt_that_leaves_no_room_is_refused(open_engine: OpenEngine) -> None:
    async with open_engine() as engine:
        await engine.load_weights(weights(0))
        with pytest.raises(PromptTooLong) as caught:
            await engine.generate(asks("p.1/L0/0/", prompt=CONTEXT))
        assert (caught.value.tokens, caught.value.context) == (CONTEXT, CONTEXT)


async def test_a_paused_engine_keeps_its_requests_and_goes_on(open_engine: OpenEngine) -> None:
    request = asks("p.1/L0/0/")
    async with open_engine() as engine:
        async with standing_still(engine, request) as outcomes:
            await engine.pause()
            status = await engine.status()
            assert status.paused
            assert status.live == 2
            assert await engine.live_requests() == {one.request_id for one in request.samples}
            assert outcomes.generations == []
        assert len(outcomes.generations) == 1
        assert not (await engine.status()).paused


async def test_an_abort_ends_what_runs_and_says_what_it_was(open_engine: OpenEngine) -> None:
    """vllm#10806, verl#6866: a request went on after its client had left (I46)."""
    async with open_engine() as engine:
        async with standing_still(engine, asks("p.1/L1/0/"), asks("p.1/L17/0/")) as outcomes:
            assert await engine.abort("p.1/L1/0/") == {"p.1/L1/0/0/0", "p.1/L1/0/1/0"}
            assert await engine.live_requests() == {"p.1/L17/0/0/0", "p.1/L17/0/1/0"}
            assert await engine.abort("p.1/L1/0/") == frozenset()
        assert [error.prefix for error in outcomes.errors if isinstance(error, Aborted)] == ["p.1/L1/0/"]
        assert [one.completions[0].request_id for one in outcomes.generations] == ["p.1/L17/0/0/0"]


async def test_an_abort_reaches_what_is_being_decoded(open_engine: OpenEngine) -> None:
    async with open_engine() as engine:
        await engine.load_weights(weights(0))
        outcomes = Outcomes()
        async with anyio.create_task_group() as tasks:
            for lease in range(8):
                request = asks(f"p.1/L{lease}/0/", samples=4, max_tokens=60)
                tasks.start_soon(outcomes.collect, engine, request)
            await anyio.wait_all_tasks_blocked()
            for lease in (0, 5):
                await engine.abort(f"p.1/L{lease}/")
                assert not any(one.startswith(f"p.1/L{lease}/") for one in await engine.live_requests())
        assert {type(error) for error in outcomes.errors} <= {Aborted}
        assert len(outcomes.errors) + len(outcomes.generations) == 8


async def test_all_samples_of_a_request_share_one_fate(open_engine: OpenEngine) -> None:
    async with open_engine() as engine, standing_still(engine, asks("p.1/L1/0/", samples=3)) as outcomes:
        assert await engine.abort("p.1/L1/0/2/") == {"p.1/L1/0/0/0", "p.1/L1/0/1/0", "p.1/L1/0/2/0"}
        assert await engine.live_requests() == frozenset()
        await anyio.wait_all_tasks_blocked()
        assert len(outcomes.errors) == 1


async def test_an_abort_that_overtakes_its_request_wins(open_engine: OpenEngine) -> None:
    """verifiers PR#1035: the cancel came before the request was known, and the work ran on."""
    async with open_engine() as engine:
        await engine.load_weights(weights(0))
        assert await engine.abort("p.1/L1/0/") == frozenset()
        with pytest.raises(Aborted):
            await engine.generate(asks("p.1/L1/0/"))
        assert await engine.live_requests() == frozenset()
        await engine.generate(asks("p.1/L1/1/"))


async def test_a_cancelled_call_leaves_nothing_running(open_engine: OpenEngine) -> None:
    async with open_engine() as engine:
        await engine.load_weights(weights(0))
        await engine.pause()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(engine.generate, asks("p.1/L1/0/"))
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        await engine.resume()  # whatever was sent before is done when this returns
        assert await engine.live_requests() == frozenset()


async def test_loading_is_idempotent_and_says_what_is_served(open_engine: OpenEngine) -> None:
    async with open_engine() as engine:
        for version in (0, 1, 1):
            assert await engine.load_weights(weights(version)) == version
            assert (await engine.status()).version == version


async def test_requests_go_on_under_new_weights(open_engine: OpenEngine) -> None:
    """AReaL PR#1569: tokens were stamped with a version that was read at another time than they were made (I29)."""
    async with open_engine() as engine:
        await engine.load_weights(weights(0))
        outcomes = Outcomes()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(outcomes.collect, engine, asks("p.1/L0/0/", max_tokens=60)))
            await anyio.wait_all_tasks_blocked()
            assert await engine.load_weights(weights(1)) == 1
            assert await engine.load_weights(weights(2)) == 2
        for done in outcomes.generations[0].completions:
            assert sum(one.count for one in done.segments) == len(done.token_ids)
            stamps = [one.version for one in done.segments]
            assert stamps == sorted(set(stamps))
            assert all(one.count > 0 for one in done.segments)
        later = await engine.generate(asks("p.1/L1/0/"))
        assert {one.version for done in later.completions for one in done.segments} == {2}


async def test_calls_reach_a_checkpoint_even_when_they_are_refused(open_engine: OpenEngine) -> None:
    """Where a refusal does not yield, a caller that retries keeps the loop for itself."""
    async with open_engine() as engine:
        calls = (engine.status, engine.live_requests, lambda: engine.generate(asks("p.1/L0/0/")))
        for call in calls:
            with anyio.CancelScope() as scope:
                scope.cancel()
                await call()
            assert scope.cancelled_caught
