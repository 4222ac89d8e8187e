"""Which server an engine is: what a job may say of it."""

import pytest

from backends.engines import sglang, vllm
from backends.engines._http.server import open_server_engine
from backends.engines._http.vllm import VllmDialect
from backends.sim.payloads import ScriptedPayloads
from protocols.adapters import Host
from protocols.backend import Ranks
from protocols.errors import UserError
from protocols.sections import Section
from tests.support.batches import site
from tests.support.http_engines import open_test_server
from tests.support.texts import exactly

pytestmark = pytest.mark.real_time

URL = "http://127.0.0.1:1"


@pytest.mark.parametrize("adapter", [vllm, sglang])
def test_every_mistake_is_named(adapter: object) -> None:
    def fields(**options: object) -> list[str]:
        model = Section(kind="scratch", options=dict(options.pop("model", {})))  # pyright: ignore[reportArgumentType, reportCallIssue]
        return [problem.field for problem in adapter.check(adapter.Config(**options), site(model))]  # pyright: ignore[reportAttributeAccessIssue]

    assert fields(urls=(URL,)) == []
    assert fields(command=("serve", "--port={port}")) == []
    assert fields() == ["engine.urls"]
    assert fields(urls=(URL,), command=("serve", "{port}")) == ["engine.urls"]
    assert fields(command=("serve",)) == ["engine.command"]
    assert fields(urls=("localhost:8000", "ftp://host")) == ["engine.urls", "engine.urls"]
    assert fields(urls=(URL, URL), router=URL) == []
    assert fields(urls=(URL,), router="router:3000") == ["engine.router"]
    assert fields(command=("serve", "{port}"), router=URL) == ["engine.router"]
    refused = [] if adapter is vllm else ["model.lora"]
    assert fields(urls=(URL,), model={"lora": {"rank": 4}}) == refused


def test_weights_that_cannot_be_sent_are_refused() -> None:
    def fields(adapter: object, lora: object = None, **options: object) -> list[str]:
        cfg = adapter.Config(urls=(URL,), **options)  # pyright: ignore[reportAttributeAccessIssue]
        model = Section(kind="scratch", options={"lora": lora} if lora else {})
        return [problem.field for problem in adapter.check(cfg, site(model))]  # pyright: ignore[reportAttributeAccessIssue]

    for adapter in (vllm, sglang):
        assert fields(adapter, weights="gloo") == []
        assert fields(adapter, weights="nccl", weights_dir="there") == ["engine.weights"]
    assert fields(vllm, weights="gloo", lora={"rank": 4}) == ["engine.weights"]
    assert fields(sglang, weights="gloo", lora={"rank": 4}) == ["model.lora"]


async def test_a_broadcast_between_gpus_without_a_gpu_is_refused() -> None:
    host = Host(site=site(), payloads=ScriptedPayloads())
    async with open_test_server("vllm") as url:
        options = vllm.Config(urls=(url,), weights="nccl")
        with pytest.raises(UserError, match="needs a GPU"):
            async with open_server_engine(options, host, lambda one: VllmDialect(one, "raw")):
                pass


async def test_an_engine_without_a_server_of_its_own_is_refused() -> None:
    """Two engines on one server would load weights into it against each other."""
    ranks = Ranks(world=2, role=1, node=0, local=2)
    host = Host(site=site(), payloads=ScriptedPayloads(), ranks=ranks)
    why = "it names 1 servers, and there is an engine number 2"
    text = f"engine.urls: {why}; name one for each engine, or set engines = 1"
    with pytest.raises(UserError, match=exactly(text)):
        async with open_server_engine(vllm.Config(urls=(URL,)), host, lambda one: VllmDialect(one, "raw")):
            pass


async def test_a_second_engine_behind_a_router_is_refused() -> None:
    """It would load weights into the servers of the first, and abort there."""
    ranks = Ranks(world=2, role=1, node=0, local=2)
    host = Host(site=site(), payloads=ScriptedPayloads(), ranks=ranks)
    options = vllm.Config(urls=(URL, URL), router=URL)
    with pytest.raises(
        UserError, match=exactly("engine.router: the servers behind it are one engine; set engines = 1")
    ):
        async with open_server_engine(options, host, lambda one: VllmDialect(one, "raw")):
            pass
