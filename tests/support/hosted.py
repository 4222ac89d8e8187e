"""Workloads for launchers to host: graders that misbehave as their options say."""

import asyncio
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Literal
from urllib.parse import quote, unquote

import anyio
from anyio.lowlevel import checkpoint

from protocols.adapters import Host
from protocols.backend import LauncherPort
from protocols.errors import Infeasible, Problem
from protocols.grading import Grade, GradeReport, GradeRequest, GraderPort
from protocols.messages import Message, WorkerId
from protocols.sections import Site

KIND = "tests.support.hosted:Hosted"

OPEN: list[str] = []
"""Names of the workloads that are open now in this process."""


def open_in(folder: Path) -> list[str]:
    """Return the names of the workloads with this ``folder`` that are open now, in processes that live."""
    return sorted(unquote(file.name) for file in folder.iterdir() if _lives(int(file.read_text())))


def _lives(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


async def running(launcher: LauncherPort) -> dict[WorkerId, bool]:
    """Return whether each worker runs that was launched and not killed."""
    return {name: state.running for name, state in (await launcher.poll()).items()}


class Bug(Exception):
    """What nobody foresaw."""


class HostedConfig(Message, frozen=True, kw_only=True):
    """Options of a hosted workload.

    Attributes:
        name: In ``OPEN``.
        folder: Holds a file for each open workload, with the number of its process; none where it is empty.
        opening: ``refused`` raises a ConductorError, ``bug`` a foreign one, ``leaks`` a cancellation that
            nobody asked for, ``hangs`` never ends.
        running: ``dies`` after a second.
        call: ``bug`` raises a foreign error, ``refused`` a ConductorError, ``hangs`` never ends.
        closing: ``bug`` raises, ``hangs`` never ends.
    """

    name: str = "hosted"
    folder: str = ""
    opening: Literal["works", "refused", "bug", "leaks", "hangs"] = "works"
    running: Literal["stays", "dies"] = "stays"
    call: Literal["works", "refused", "bug", "hangs"] = "works"
    closing: Literal["works", "bug", "hangs"] = "works"


class HostedGrader:
    """Gives every sample its index."""

    def __init__(self, cfg: HostedConfig, host: Host) -> None:
        self._cfg = cfg
        self.host = host

    async def grade(self, request: GradeRequest) -> GradeReport:
        """Grade, or do what the options say."""
        await checkpoint()
        if self._cfg.call == "bug":
            raise Bug("in a call")
        if self._cfg.call == "refused":
            raise Infeasible(what="grading", asked=2, available=1)
        if self._cfg.call == "hangs":
            await anyio.sleep_forever()
        grades = tuple(Grade(reward=float(sample)) for sample in request.samples)
        return GradeReport(lease_id=request.lease_id, attempt=request.attempt, grades=grades)


class Hosted:
    """The adapter."""

    Config = HostedConfig

    @staticmethod
    def check(cfg: HostedConfig, site: Site) -> Sequence[Problem]:
        """Return nothing."""
        return ()

    @staticmethod
    @asynccontextmanager
    async def open(cfg: HostedConfig, host: Host) -> AsyncGenerator[HostedGrader]:
        """Open, run and close as the options say."""
        await checkpoint()
        if cfg.opening == "refused":
            raise Infeasible(what="opening", asked=2, available=1)
        if cfg.opening == "bug":
            raise Bug("while opening")
        if cfg.opening == "leaks":
            raise asyncio.CancelledError
        OPEN.append(cfg.name)
        file = Path(cfg.folder) / quote(cfg.name, safe="") if cfg.folder else None
        if file is not None:
            file.write_text(str(os.getpid()))
        try:
            if cfg.opening == "hangs":
                await anyio.sleep_forever()
            async with anyio.create_task_group() as tasks:
                if cfg.running == "dies":
                    tasks.start_soon(_die)
                yield HostedGrader(cfg, host)
        finally:
            OPEN.remove(cfg.name)
            if file is not None:
                file.unlink()
        if cfg.closing == "bug":
            raise Bug("while closing")
        if cfg.closing == "hangs":
            await anyio.sleep_forever()


async def _die() -> None:
    await anyio.sleep(1)
    raise Bug("while running")


_: type[GraderPort] = HostedGrader
