"""Engines over two servers behind real routers: ``make test-routers``. Skipped where there are none."""

import math
import os

import anyio
import pytest

from backends.engines._http import engine as http_engine
from protocols.errors import Aborted, ConductorError, EngineStale, Transient
from protocols.inference import GenerateRequest, Generation, SampleRequest, Sampling
from tests.support.http_engines import KINDS, new_plain_client
from tests.support.routers import Routed, open_routed

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.slow,
    pytest.mark.skipif("CONDUCTOR_ROUTERS" not in os.environ, reason="make test-routers installs the routers"),
    pytest.mark.parametrize("kind", KINDS),
]


def asks(prefix: str, *, samples: int = 4, tokens: int = 60) -> GenerateRequest:
    named = (SampleRequest(request_id=f"{prefix}{index}/0", stream=f"0/0/{index}/0") for index in range(samples))
    return GenerateRequest(prompt_ids=(1, 2, 3), samples=tuple(named), sampling=Sampling(max_tokens=tokens))


async def running(routed: Routed) -> list[int]:
    return [(await server.load()).requests for server in routed.servers]


async def test_an_abort_reaches_every_server_behind_a_router(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue G: a router answers an abort, and passes it to one server, or to none. Nothing is ended by hanging up."""
    monkeypatch.setattr(http_engine, "HANG_UP_S", math.inf)
    errors: list[ConductorError] = []

    async def generate(routed: Routed, lease: int) -> None:
        try:
            await routed.engine.generate(asks(f"p.1/L{lease}/0/"))
        except ConductorError as exc:
            errors.append(exc)

    async with open_routed(kind) as routed:
        await routed.engine.load_weights(await routed.published.manifest(0))
        await routed.engine.pause()
        async with anyio.create_task_group() as tasks:
            for lease in range(10):
                tasks.start_soon(generate, routed, lease)
            while sum(await running(routed)) < 40:  # noqa: ASYNC110 - a server tells nobody when it has
                await anyio.sleep(0.05)
            assert min(await running(routed)) > 0
            with anyio.fail_after(60):
                assert len(await routed.engine.abort("p.1/")) == 40
            assert await running(routed) == [0, 0]
            assert await routed.engine.live_requests() == frozenset()
    assert [type(error) for error in errors] == [Aborted] * 10


async def test_weights_reach_every_server_and_each_span_tells_of_them(kind: str) -> None:
    """Issue G: both servers answer with the label that they were given past the router."""
    found: list[Generation] = []

    async def generate(routed: Routed) -> None:
        found.append(await routed.engine.generate(asks("p.1/L0/0/", samples=8)))

    async with open_routed(kind) as routed:
        await routed.engine.load_weights(await routed.published.manifest(0))
        await routed.engine.pause()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(generate, routed)
            while sum(await running(routed)) < 8:  # noqa: ASYNC110 - a server tells nobody when it has
                await anyio.sleep(0.05)
            assert await running(routed) == [4, 4]
            await routed.engine.resume()
            await routed.engine.load_weights(await routed.published.manifest(1))
        labels = {(await server.state()).label for server in routed.servers}
        assert len(labels) == 1
        assert (await routed.engine.status()).version == 1
        found.append(await routed.engine.generate(asks("p.1/L1/0/", samples=2, tokens=5)))
    for one in found[0].completions:
        assert [segment.version for segment in one.segments] == sorted({segment.version for segment in one.segments})
        assert sum(segment.count for segment in one.segments) == len(one.token_ids) == 60
    assert [(one.segments[0].version, len(one.segments)) for one in found[1].completions] == [(1, 1)] * 2


async def test_one_server_of_several_that_does_not_hold_an_update_is_named(kind: str) -> None:
    """Issue G: the probe asks each server, past the router, which would ask one."""
    async with open_routed(kind, unheld=2) as routed:
        await routed.engine.load_weights(await routed.published.manifest(0))
        with pytest.raises(Transient, match=f"{routed.urls[1]} accepted version 1 and does not hold it"):
            await routed.engine.load_weights(await routed.published.manifest(1))
        with pytest.raises(EngineStale):
            await routed.engine.generate(asks("p.1/L0/0/"))
        assert await routed.engine.load_weights(await routed.published.manifest(1)) == 1
        await routed.engine.generate(asks("p.1/L0/0/"))


async def test_servers_that_bear_different_labels_serve_nothing(kind: str) -> None:
    """One was given weights by somebody else, or began anew: nobody knows which of them a router would choose."""
    async with open_routed(kind) as routed, new_plain_client(routed.urls[1]) as client:
        await routed.engine.load_weights(await routed.published.manifest(0))
        assert (await routed.engine.status()).version == 0
        answer = await client.post("/update_weight_version", json={"new_version": "default"})
        assert answer.is_success
        assert (await routed.engine.status()).version is None
        with pytest.raises(EngineStale):
            await routed.engine.generate(asks("p.1/L0/0/"))
