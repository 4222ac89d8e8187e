"""A vLLM server as an engine.

It needs the routes that ``VLLM_SERVER_DEV_MODE=1`` and ``--enable-scale-out`` open: token ids in and out with the label
of the weights that made each span, pause, abort, weights from a folder. docs/engines.md says how to start one.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Literal

from backends.engines._http.opening import ServerOptions, check_options
from protocols.adapters import Host
from protocols.errors import Problem
from protocols.inference import EnginePort
from protocols.sections import Site


class Config(ServerOptions, frozen=True, kw_only=True):
    """Where the server is, or how it is started.

    Attributes:
        logprobs: The server's ``--logprobs-mode``: ``raw`` is vLLM's own default, and right at temperature 1 and 0
            alone; ``processed`` (``processed_logprobs``) is right without ``top_p`` and ``top_k``.
        reload: The method of the server's workers that loads weights from a folder. ``conductor_reload`` of
            ``backends.engines._vllm_worker`` is needed on a CPU where the output head is tied to the embeddings.
    """

    logprobs: Literal["raw", "processed"] = "raw"
    reload: str = "reload_weights"


def check(cfg: Config, site: Site) -> Sequence[Problem]:
    """Return what is wrong with the options, without asking the server."""
    return check_options(cfg, site, kind="vllm", takes_adapters=True)


@asynccontextmanager
async def open(cfg: Config, host: Host) -> AsyncGenerator[EnginePort]:  # noqa: A001 - the name of every adapter's
    """Attach to the server, or start it and wait until it is ready.

    Raises:
        ConductorError: As ``open_server_engine`` does.
    """
    from backends.engines._http.adapters import lora_of  # noqa: PLC0415 - as below
    from backends.engines._http.server import open_server_engine  # noqa: PLC0415 - httpx2 is an extra
    from backends.engines._http.vllm import VllmDialect  # noqa: PLC0415 - as above

    adapters = lora_of(host.site) is not None
    async with open_server_engine(
        cfg, host, lambda connection: VllmDialect(connection, cfg.logprobs, cfg.reload, adapters=adapters)
    ) as engine:
        yield engine
