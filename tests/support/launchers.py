"""The launchers that the suites of all launchers run over."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any

import pytest

from backends import processes
from backends.inproc.launcher import open_launcher
from backends.sim.payloads import ScriptedPayloads
from protocols.backend import LauncherPort
from protocols.sections import Site

OpenLauncher = Callable[[], AbstractAsyncContextManager[LauncherPort]]


@asynccontextmanager
async def _inproc(*, encode: bool) -> AsyncGenerator[LauncherPort]:
    async with open_launcher(ScriptedPayloads(), encode_messages=encode) as launcher:
        yield launcher


@asynccontextmanager
async def _processes() -> AsyncGenerator[LauncherPort]:
    async with processes.open(processes.Config(patience_s=1.0), Site(job_dir="/")) as backend:
        yield backend.launcher


INPROC = pytest.param(partial(_inproc, encode=False), id="inproc")
ENCODED = pytest.param(partial(_inproc, encode=True), id="inproc-encoded")
PROCESSES = pytest.param(_processes, id="processes", marks=pytest.mark.real_time)
RAY = pytest.param("ray_launcher", id="ray", marks=[pytest.mark.real_time, pytest.mark.cluster])


def chosen(request: pytest.FixtureRequest) -> Any:
    """Return what a parameter opens; by name where a fixture makes it."""
    return request.getfixturevalue(request.param) if isinstance(request.param, str) else request.param
