"""The whole server: model, engine, interface, port."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Literal

import anyio
from anyio.abc import Listener, SocketAttribute, SocketStream

from backends.engines._serve.faults import Faults
from backends.engines._serve.routes import failed
from backends.engines._serve.served import ServedEngine
from backends.engines._serve.sglang import Sglang
from backends.engines._serve.vllm import Vllm
from backends.engines._serve.web import Answer, Refused, Request, serve
from backends.engines.torch import Config
from backends.engines.torch.engine import open_engine
from backends.inproc.payloads import InprocPayloads
from backends.models.opening import check_model, load_tokenizer
from protocols.adapters import Host
from protocols.aio import open_tasks, owned
from protocols.errors import UserError
from protocols.faults import FaultPlan
from protocols.messages import Message, WeightVersion
from protocols.sections import Section, Site

Protocol = Literal["vllm", "sglang"]
_INTERFACES = {"vllm": Vllm, "sglang": Sglang}
_BACKLOG = 4096  # a batch of requests connects at once


class ServerConfig(Message, frozen=True, kw_only=True):
    """A server.

    Attributes:
        protocol: Whose interface it has.
        host: Address that it listens on.
        port: 0: any that is free.
        name: What clients call the model.
        engine: How it decodes.
        faults: Calls that go wrong.
        unheld: Number of the weight update, from 1, that is accepted and not held; 0: none.
    """

    protocol: Protocol
    host: str = "127.0.0.1"
    port: int = 0
    name: str = "policy"
    engine: Config = Config()
    faults: FaultPlan = FaultPlan()
    unheld: int = 0


@asynccontextmanager
async def open_server(cfg: ServerConfig, model: Section, *, job_dir: str, seed: int = 0) -> AsyncGenerator[str]:
    """Serve a model until the block ends; gives the server's URL.

    Args:
        cfg: The server.
        model: As a job's section ``[model]``; its weights are served until others are loaded.
        job_dir: Where relative paths in it start.
        seed: Of random weights.

    Raises:
        UserError: The model cannot be served, the port is taken, or a fault cannot happen.
    """
    site = Site(job_dir=job_dir, seed=seed, model=model)
    faults = Faults(cfg.faults)
    await anyio.to_thread.run_sync(check_model, site)  # the hub's own client tries for a minute, file by file
    tokenizer = await anyio.to_thread.run_sync(load_tokenizer, site)
    async with open_engine(cfg.engine, Host(site=site, payloads=InprocPayloads())) as engine:
        await engine.swap(WeightVersion(0))
        context = (await engine.status()).context
        served = ServedEngine(engine, tokenizer, context=context, model=cfg.name, unheld=cfg.unheld)
        routes = _INTERFACES[cfg.protocol](served).routes()

        async def handle(request: Request) -> Answer:
            route = routes.get((request.method, request.path))
            if route is None:
                raise Refused(HTTPStatus.NOT_FOUND, f"there is no {request.method} {request.path}")
            return await faults.answer(route, request)

        async with await _listener(cfg) as listener, open_tasks() as tasks:
            port = listener.extra(SocketAttribute.local_port)  # noqa: S610 - a socket, no query
            tasks.start_soon(owned, "server", serve, listener, handle, failed, name="server")
            yield f"http://{cfg.host}:{port}"
            tasks.cancel_scope.cancel()


async def _listener(cfg: ServerConfig) -> Listener[SocketStream]:
    try:
        return await anyio.create_tcp_listener(local_host=cfg.host, local_port=cfg.port, backlog=_BACKLOG)
    except OSError as exc:
        why = exc.strerror or exc
        raise UserError(f"cannot listen on {cfg.host}:{cfg.port}: {why}; give another --host or --port") from exc
