"""The adapter of an engine that computes nothing, for workers in processes of their own."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace

from benchmarks._instant import InstantEngine
from protocols.adapters import Host
from protocols.errors import Problem
from protocols.inference import EnginePort
from protocols.messages import Message
from protocols.sections import Site


class Config(Message, frozen=True, kw_only=True):
    """It has no options."""


def check(cfg: Config, site: Site) -> Sequence[Problem]:
    """Find nothing wrong."""
    del cfg, site
    return ()


@asynccontextmanager
async def open_engine(cfg: Config, host: Host) -> AsyncGenerator[EnginePort]:
    """Open it."""
    del cfg, host
    yield InstantEngine()


ADAPTER = SimpleNamespace(Config=Config, check=check, open=open_engine)
