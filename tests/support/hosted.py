"""Workloads for launchers to host: graders that misbehave as their options say."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Literal

import anyio
from anyio.lowlevel import checkpoint

from protocols.adapters import Host
from protocols.errors import Infeasible, Problem
from protocols.grading import Grade, GradeReport, GradeRequest, GraderPort
from protocols.messages import Message
from protocols.sections import Site

KIND = "tests.support.hosted:Hosted"

OPEN: list[str] = []
"""Names of the workloads that are open now."""


class Bug(Exception):
    """What nobody foresaw."""


class HostedConfig(Message, frozen=True, kw_only=True):
    """Options of a hosted workload.

    Attributes:
        name: In ``OPEN``.
        opening: ``refused`` raises a ConductorError, ``bug`` a foreign one, ``leaks`` a cancellation that
            nobody asked for, ``hangs`` never ends.
        running: ``dies`` after a second.
        call: ``bug`` raises a foreign error, ``refused`` a ConductorError, ``hangs`` never ends.
        closing: ``bug`` raises, ``hangs`` never ends.
    """

    name: str = "hosted"
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
        try:
            if cfg.opening == "hangs":
                await anyio.sleep_forever()
            async with anyio.create_task_group() as tasks:
                if cfg.running == "dies":
                    tasks.start_soon(_die)
                yield HostedGrader(cfg, host)
        finally:
            OPEN.remove(cfg.name)
        if cfg.closing == "bug":
            raise Bug("while closing")
        if cfg.closing == "hangs":
            await anyio.sleep_forever()


async def _die() -> None:
    await anyio.sleep(1)
    raise Bug("while running")


_: type[GraderPort] = HostedGrader
