"""An SGLang server as an engine, of 0.5.23 or later: token ids in and out with the label of each span's weights.

docs/engines.md says how to start one.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from backends.engines._http.opening import ServerOptions, check_options
from protocols.adapters import Host
from protocols.errors import Problem
from protocols.inference import EnginePort
from protocols.sections import Site


class Config(ServerOptions, frozen=True, kw_only=True):
    """Where the server is, or how it is started."""


def check(cfg: Config, site: Site) -> Sequence[Problem]:
    """Return what is wrong with the options, without asking the server."""
    return check_options(cfg, site, kind="sglang", takes_adapters=False)


@asynccontextmanager
async def open(cfg: Config, host: Host) -> AsyncGenerator[EnginePort]:  # noqa: A001 - the name of every adapter's
    """Attach to the server, or start it and wait until it is ready.

    Raises:
        ConductorError: As ``open_server_engine`` does.
    """
    from backends.engines._http.server import open_server_engine  # noqa: PLC0415 - httpx2 is an extra
    from backends.engines._http.sglang import SglangDialect  # noqa: PLC0415 - as above

    async with open_server_engine(cfg, host, SglangDialect) as engine:
        yield engine
