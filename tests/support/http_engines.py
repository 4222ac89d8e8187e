"""Servers of ``conductor engine`` in the test's own process, and engines over them."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import msgspec

from backends.engines._http.connection import Connection
from backends.engines._http.dialect import Dialect
from backends.engines._http.engine import HttpEngine
from backends.engines._http.opening import ServerOptions
from backends.engines._http.server import open_server_engine
from backends.engines._http.sglang import SglangDialect
from backends.engines._http.vllm import VllmDialect
from backends.engines._serve.program import ServerConfig, open_server
from backends.models.loading import load_module, named_weights
from backends.sim.payloads import ScriptedPayloads
from backends.trainers.torch.probe import probe_of
from protocols.adapters import Host
from protocols.faults import parse_plan
from protocols.inference import WeightsManifest
from protocols.messages import PayloadRef, WeightVersion
from protocols.sections import Section
from tests.support.batches import GPT2, site

KINDS = ("vllm", "sglang")


class Published:
    """A store with weights of several versions, each different, and what the trainer would say of them."""

    def __init__(self, model: Section = GPT2) -> None:
        self.site = site(model)
        self.payloads = ScriptedPayloads()
        self._module = load_module(self.site)

    async def manifest(self, version: int) -> WeightsManifest:
        """Store the weights of a version."""
        own = named_weights(self._module)
        # adapters begin with a matrix of zeros
        weights = {name: tensor * (1 + version / 4) + version / 100 for name, tensor in own.items()}
        kept = {name: tensor.clone() for name, tensor in own.items()}
        for name, tensor in own.items():
            tensor.copy_(weights[name])
        probe = probe_of(self._module)
        for name, tensor in own.items():
            tensor.copy_(kept[name])
        payload = PayloadRef(owner=f"weights/{version}", key="parameters")
        await self.payloads.put(payload, weights)
        return WeightsManifest(
            version=WeightVersion(version), payload=payload, tensors=len(weights), size_bytes=1, probe=probe
        )


@asynccontextmanager
async def open_test_server(
    kind: str, *, faults: str = "", model: Section = GPT2, **options: Any
) -> AsyncGenerator[str]:
    """Serve a small model; gives the URL."""
    plan = msgspec.to_builtins(parse_plan(faults))
    cfg = msgspec.convert({"protocol": kind, "faults": plan, **options}, ServerConfig)
    async with open_server(cfg, model, job_dir="/", seed=site().seed) as url:
        yield url


def dialect_of(kind: str, connection: Connection) -> Dialect:
    """Return the dialect of an interface; vLLM's log-probabilities are ``conductor engine``'s."""
    return VllmDialect(connection, "raw") if kind == "vllm" else SglangDialect(connection)


@asynccontextmanager
async def open_attached(
    kind: str, url: str, published: Published, speak: type[Dialect] | None = None, **options: Any
) -> AsyncGenerator[HttpEngine]:
    """Open the engine over a server."""
    host = Host(site=published.site, payloads=published.payloads)

    def dialect(connection: Connection) -> Dialect:
        return dialect_of(kind, connection) if speak is None else speak(connection)  # pyright: ignore[reportCallIssue]

    async with open_server_engine(ServerOptions(urls=(url,), **options), host, dialect) as engine:
        yield engine


@asynccontextmanager
async def open_pair(kind: str, *, faults: str = "", **options: Any) -> AsyncGenerator[tuple[HttpEngine, Published]]:
    """Open a server and an engine over it."""
    published = Published()
    async with (
        open_test_server(kind, faults=faults, **options) as url,
        open_attached(kind, url, published) as engine,
    ):
        yield engine, published


def new_plain_client(url: str) -> httpx2.AsyncClient:
    """Return a client that knows nothing of engines."""
    return httpx2.AsyncClient(base_url=url, timeout=30, trust_env=False)
