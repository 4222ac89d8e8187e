"""Real routers, as programs, before servers of ``conductor engine`` in the test's own process."""

import os
import socket
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from subprocess import DEVNULL
from typing import NamedTuple

import anyio
import httpx2

from backends.engines._http.connection import Connection, new_client
from backends.engines._http.dialect import Dialect
from backends.engines._http.engine import HttpEngine
from backends.engines._http.opening import ServerOptions
from backends.engines._http.server import open_server_engine
from protocols.adapters import Host
from tests.support.batches import site
from tests.support.http_engines import Published, dialect_of, open_test_server

START_S = 60.0
WORDS = {"vllm": ("vllm-router",), "sglang": ("sglang-router", "launch")}


class Routed(NamedTuple):
    """An engine over servers behind a router.

    Attributes:
        engine: Over all.
        servers: Speak to each server, past the router.
        urls: Of the servers.
        published: Weights for them.
    """

    engine: HttpEngine
    servers: tuple[Dialect, ...]
    urls: tuple[str, ...]
    published: Published


@asynccontextmanager
async def open_router(kind: str, urls: tuple[str, ...]) -> AsyncGenerator[str]:
    """Run a router before servers, which takes them in turn; gives its URL once it is well."""
    port, metrics = _free_ports()
    program, *rest = WORDS[kind]
    options = ["--host", "127.0.0.1", "--port", port, "--prometheus-port", metrics, "--policy", "round_robin"]
    command = [str(Path(os.environ["CONDUCTOR_ROUTERS"]) / program), *rest, *options, "--worker-urls", *urls]
    url = f"http://127.0.0.1:{port}"
    async with await anyio.open_process(command, stdin=DEVNULL, stdout=None, stderr=None) as process:
        try:
            with anyio.fail_after(START_S):
                await _well(url)
            yield url
        finally:
            with suppress(ProcessLookupError):
                process.kill()


async def _well(url: str) -> None:
    async with httpx2.AsyncClient(base_url=url, trust_env=False) as client:
        while True:
            with suppress(httpx2.TransportError):
                if (await client.get("/health")).is_success:
                    return
            await anyio.sleep(0.1)


def _free_ports() -> tuple[str, str]:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1]), str(other.getsockname()[1])


@asynccontextmanager
async def open_routed(kind: str, *, unheld: int = 0) -> AsyncGenerator[Routed]:
    """Open two servers, a router and an engine; the second server does not hold update number ``unheld``."""
    published = Published()
    async with AsyncExitStack() as stack:
        urls = tuple([await stack.enter_async_context(open_test_server(kind, unheld=held)) for held in (0, unheld)])
        router = await stack.enter_async_context(open_router(kind, urls))
        clients = [await stack.enter_async_context(new_client(url)) for url in urls]
        servers = tuple(dialect_of(kind, Connection(client, url)) for client, url in zip(clients, urls, strict=True))
        host = Host(site=site(), payloads=published.payloads)
        options = ServerOptions(urls=urls, router=router)
        engine = await stack.enter_async_context(
            open_server_engine(options, host, lambda connection: dialect_of(kind, connection))
        )
        yield Routed(engine, servers, urls, published)
