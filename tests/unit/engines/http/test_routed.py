"""Servers behind a router, for which one of them stands here: which is asked what. Real ones: ``make test-routers``."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import pytest

from backends.engines._http.connection import ServerRefused
from backends.engines._http.engine import HttpEngine
from backends.engines._http.opening import ServerOptions
from backends.engines._http.server import open_server_engine
from backends.engines._http.together import together
from protocols.adapters import Host
from protocols.errors import Transient, WorkerLost
from tests.support.http_engines import KINDS, Published, dialect_of, new_plain_client, open_test_server

each_kind = pytest.mark.parametrize("kind", KINDS)


@asynccontextmanager
async def open_two(kind: str, *, unheld: int = 0) -> AsyncGenerator[tuple[HttpEngine, Published, str]]:
    """Open an engine over two servers; gives the second one's URL, whose update ``unheld`` is not held, too."""
    published = Published()
    host = Host(site=published.site, payloads=published.payloads)
    async with open_test_server(kind) as router, open_test_server(kind, unheld=unheld) as second:
        options = ServerOptions(urls=(router, second), router=router)
        async with open_server_engine(options, host, lambda connection: dialect_of(kind, connection)) as engine:
            yield engine, published, second


@pytest.mark.real_time
@each_kind
async def test_the_server_that_does_not_hold_an_update_is_named(kind: str) -> None:
    """Issue G: the probe asks each server; through the router it would have asked the other one."""
    async with open_two(kind, unheld=2) as (engine, published, second):
        await engine.load_weights(await published.manifest(0))
        with pytest.raises(Transient, match=f"{second} accepted version 1 and does not hold it"):
            await engine.load_weights(await published.manifest(1))
        assert (await engine.status()).version is None
        assert await engine.load_weights(await published.manifest(1)) == 1


@pytest.mark.real_time
@each_kind
async def test_servers_with_different_labels_serve_nothing(kind: str) -> None:
    """Nobody knows which of them a router would choose."""
    async with open_two(kind) as (engine, published, second), new_plain_client(second) as client:
        await engine.load_weights(await published.manifest(0))
        assert (await engine.status()).version == 0
        (await client.post("/update_weight_version", json={"new_version": "default"})).raise_for_status()
        assert (await engine.status()).version is None


@pytest.mark.real_time
async def test_all_servers_stand_still_and_go_on() -> None:
    async with open_two("vllm") as (engine, _, second), new_plain_client(second) as client:
        await engine.pause()
        assert (await engine.status()).paused
        assert (await client.get("/is_paused")).json() == {"is_paused": True}
        await engine.resume()
        assert (await client.get("/is_paused")).json() == {"is_paused": False}


async def test_the_first_failure_in_order_is_raised_when_all_have_ended() -> None:
    """A task group would have cancelled an abort half-way, and told of it in a group that nobody expects."""
    done: list[str] = []

    async def succeeds() -> str:
        await anyio.sleep(3)
        done.append("third")
        return "third"

    async def refused() -> str:
        await anyio.sleep(2)
        raise ServerRefused(500, "no")

    async def lost() -> str:
        await anyio.sleep(1)
        raise WorkerLost(worker="w", cause="gone")

    with pytest.raises(ServerRefused):
        await together("test", [refused, lost, succeeds])
    assert done == ["third"]
    assert await together("test", [succeeds, succeeds]) == ["third", "third"]
