"""The backend that runs nothing: scripted workloads under a virtual clock, whatever adapters the job names.

The controller, the pool and the worker groups over it are the real ones, so a thousand hours of a cluster pass in
seconds, and the same way each time. ``conductor simulate`` is its command.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

from backends.sim.settings import Config
from backends.sim.virtual_time import VirtualTimeLoop
from protocols.backend import Backend
from protocols.errors import ConfigError, Problem
from protocols.sections import Site

__all__ = ["BRINGS", "Config", "check", "loop_factory", "open"]

BRINGS = frozenset({"model", "engine", "episode", "reward", "train"})
"""Sections of the job that the backend has workloads of its own for: their adapters are never opened."""


def loop_factory(seed: int | None = None, *, horizon_s: float = math.inf) -> Callable[[], asyncio.AbstractEventLoop]:
    """Return what makes the event loop that a simulated run is to run on.

    Args:
        seed: Of the order in which ready tasks run; None: first come, first served.
        horizon_s: Virtual seconds after which the run counts as endless.
    """
    return partial(VirtualTimeLoop, seed, horizon_s=horizon_s)


def check(cfg: Config, site: Site) -> Sequence[Problem]:
    """Return what is wrong with the options; a simulated run writes nothing."""
    from backends.sim.world import World  # noqa: PLC0415 - and all that it simulates with

    problems: list[Problem] = []
    if site.run_dir is not None:
        why, mend = "a simulated run has nothing to write", "simulate the job: conductor simulate JOB"
        problems.append(Problem(field="backend.kind", value="'sim'", why=why, mend=mend))
    try:
        World(cfg, site)
    except ConfigError as exc:
        problems.extend(exc.problems)
    return problems


@asynccontextmanager
async def open(cfg: Config, site: Site) -> AsyncGenerator[Backend]:  # noqa: A001 - the adapters' common name
    """Open the backend of a world of its own."""
    from backends.sim.world import open_world  # noqa: PLC0415 - and all that it simulates with

    async with open_world(cfg, site) as world:
        yield world.backend
