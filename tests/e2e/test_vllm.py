"""The engine over a real vLLM server with a real model: ``make test-vllm``. Skipped where there is none."""

import math
import os
from collections.abc import Generator

import anyio
import msgspec
import pytest

from backends.engines._broadcast import Meeting
from backends.engines._http import engine as http_engine
from backends.engines._http.connection import Connection, new_client
from backends.engines._http.vllm import VllmDialect
from protocols.errors import Aborted, ConductorError, Transient
from protocols.inference import EnginePort, Generation, Probe
from tests.support.vllm_servers import Trained, asks, attached, running_server

CLOSE = 1e-4

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif("CONDUCTOR_VLLM" not in os.environ, reason="make test-vllm prepares a server"),
]


@pytest.fixture(scope="module")
def url() -> Generator[str]:
    """One server for all: each test attaches anew, and finds there what the one before left."""
    with running_server() as started:
        yield started


async def test_log_probabilities_are_those_of_transformers(url: str) -> None:
    """Issue G. A stream asked for again draws the same tokens."""
    trained = Trained()
    async with attached(url, trained) as (engine, _):
        assert (await engine.status()).version is None
        await engine.load_weights(await trained.manifest(0))
        first = await engine.generate(asks("p.1/L0/0/"))
        assert max(trained.distance(one) for one in first.completions) < CLOSE
        again = await engine.generate(asks("p.1/L9/3/"))
        assert [one.token_ids for one in again.completions] == [one.token_ids for one in first.completions]


async def test_spans_during_a_swap_are_the_servers_and_true(url: str) -> None:
    """Issue G: what the engine says of tokens and versions is what the server reports, and what transformers computes.

    The log-probabilities of both spans are those of the weights that they name, over what the older ones had computed:
    a span that is one token off fails.
    """
    trained = Trained()
    found: list[Generation] = []

    async def generate(engine: EnginePort) -> None:
        found.append(await engine.generate(asks("p.1/L1/0/", tokens=200)))

    async with attached(url, trained) as (engine, speaks):
        await engine.load_weights(await trained.manifest(0))
        newer = await trained.manifest(1, change=0.02)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(generate, engine)
            await anyio.sleep(1)  # some tokens are made; how many is the machine's
            await engine.load_weights(newer)
    for one in found[0].completions:
        assert [segment.version for segment in one.segments] == [0, 1]
        assert [segment.count for segment in one.segments] == [
            span.tokens for span in speaks.answers[one.request_id].spans
        ]
        assert len(one.token_ids) == 200
        assert trained.distance(one) < CLOSE


async def test_two_hundred_requests_aborted_by_prefix_leave_none(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue G. The server's own count is asked for by a client that knows nothing of the engine; nobody hangs up."""
    monkeypatch.setattr(http_engine, "HANG_UP_S", math.inf)
    trained = Trained()
    errors: list[ConductorError] = []

    async def generate(engine: EnginePort, lease: int) -> None:
        try:
            await engine.generate(asks(f"p.1/L{lease}/0/", tokens=400))
        except ConductorError as exc:
            errors.append(exc)

    async with attached(url, trained) as (engine, _), new_client(url) as client:
        counting = VllmDialect(Connection(client, url), "raw")
        await engine.load_weights(await trained.manifest(0))
        async with anyio.create_task_group() as tasks:
            for lease in range(50):
                tasks.start_soon(generate, engine, lease)
            while (await counting.load()).requests < 200:  # noqa: ASYNC110 - a server tells nobody when it has
                await anyio.sleep(0.1)
            assert len(await engine.abort("p.1/")) == 200
            assert await engine.live_requests() == frozenset()
            assert (await counting.load()).requests == 0
    assert [type(error) for error in errors] == [Aborted] * 50


async def test_weights_that_are_not_what_the_trainer_says_are_not_served(url: str) -> None:
    """Issue G: a server that accepted an update and does not hold it is stale, until it holds the next one."""
    trained = Trained()
    async with attached(url, trained) as (engine, _):
        manifest = await trained.manifest(2, change=0.01)
        assert manifest.probe is not None
        wrong = Probe(token_ids=manifest.probe.token_ids, logprobs=tuple(one - 0.1 for one in manifest.probe.logprobs))
        with pytest.raises(Transient, match="does not hold it"):
            await engine.load_weights(msgspec.structs.replace(manifest, probe=wrong))
        assert (await engine.status()).version is None
        await engine.load_weights(manifest)
        found = await engine.generate(asks("p.1/L99/0/"))
        assert max(trained.distance(one) for one in found.completions) < CLOSE


async def test_a_tied_head_that_a_reload_leaves_behind_is_found(url: str) -> None:
    """vLLM 0.32 on a CPU: ``reload_weights`` succeeds, and a head tied to the embeddings is the old one."""
    trained = Trained()
    async with attached(url, trained, reload="reload_weights") as (engine, _):
        with pytest.raises(Transient, match="accepted version 1 and does not hold it"):
            await engine.load_weights(await trained.manifest(1, change=0.05))


async def test_weights_are_sent_by_gloo_and_one_broadcast_that_breaks_costs_only_itself(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue G: the sender leaves after the first bucket; the server serves nothing, until the next update is held."""
    trained = Trained()
    async with attached(url, trained, weights="gloo") as (engine, _):
        await engine.load_weights(await trained.manifest(0))
        newer = await trained.manifest(1, change=0.02)
        with monkeypatch.context() as broken:
            whole, asked = Meeting.send, iter([False, True])
            broken.setattr(Meeting, "send", lambda meeting, device, _: whole(meeting, device, lambda: next(asked)))
            with pytest.raises(Transient):
                await engine.load_weights(newer)
        assert (await engine.status()).version is None
        await engine.load_weights(newer)
        found = await engine.generate(asks("p.1/L98/0/"))
        assert max(trained.distance(one) for one in found.completions) < CLOSE


async def test_adapters_are_swapped_beside_the_model() -> None:
    """Issue G: the server is given a few matrices, and its log-probabilities are those of the model with them."""
    pytest.importorskip("peft")
    trained = Trained(rank=8)
    with running_server("--enable-lora", "--max-lora-rank", "8", VLLM_ALLOW_RUNTIME_LORA_UPDATING="1") as url:
        async with attached(url, trained) as (engine, _):
            for version, change in ((0, 0.0), (1, 1.0), (2, 1.0)):
                await engine.load_weights(await trained.manifest(version, change=change))
                found = await engine.generate(asks(f"p.1/L{version}/0/"))
                assert max(trained.distance(one) for one in found.completions) < CLOSE
