"""A tracker as an adapter, ``tests.unit.cli.hanging``, whose library takes the first record and never answers."""

import threading
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from backends.trackers._outlet import OutletTracker, open_outlet
from protocols.adapters import Host
from protocols.errors import Problem
from protocols.messages import Message
from protocols.sections import Site
from protocols.tracking import StepRecord

may_answer = threading.Event()


class Config(Message, frozen=True, kw_only=True):
    pass


class Outlet:
    def write(self, record: StepRecord) -> None:
        may_answer.wait(60)

    def rewind(self, step: int) -> None:
        pass

    def close(self) -> None:
        pass


class tracker:  # noqa: N801 - an adapter's name
    Config = Config

    @staticmethod
    def check(cfg: Config, site: Site) -> Sequence[Problem]:
        return ()

    @staticmethod
    @asynccontextmanager
    async def open(cfg: Config, host: Host) -> AsyncGenerator[OutletTracker]:
        async with open_outlet("hanging", Outlet, host.site.run_dir, close_s=0.2) as port:
            yield port
