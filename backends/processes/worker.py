"""The process of a worker: ``python -m backends.processes.worker CHANNEL PARENT``.

It opens the one workload that it is told to over the channel, a socket's number, and answers calls until SIGTERM, the
end of the channel, or the end of its parent. SIGUSR1 is the notice that its place is about to be taken away: it tells
the controller, and goes on.
"""

import ctypes
import gc
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import UNIXSocketStream

from backends._hosting import PORTS, not_opened, opened
from backends._log_lines import write_lines
from backends.processes.calls import Desk, HostPort, LaunchOrder, NoticePort, of_controller
from backends.processes.channel import Channel
from backends.processes.payloads import SharedPayloads
from protocols.adapters import Host
from protocols.aio import open_tasks, owned
from protocols.errors import InvariantError, WorkerLost
from protocols.inference import InferenceControllerPort
from protocols.roles import RolesPort

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Live as long as the parent wants."""
    channel, parent = (int(argument) for argument in sys.argv[1:])
    _die_with(parent)
    write_lines()
    gc.disable()  # until it is open: what is imported is no garbage, and to look for some takes a sixth of the start
    anyio.run(_serve, channel)


def _die_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before that
        sys.exit("the controller is gone")


async def _serve(descriptor: int) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGUSR1) as signals:
        async with (
            await UNIXSocketStream.from_socket(socket.socket(fileno=descriptor)) as stream,
            open_tasks() as tasks,
        ):
            worker = _Worker()
            channel = Channel(stream, worker.desk.answer)
            noticed = anyio.Event()
            tasks.start_soon(_obey, signals, worker.close, noticed, name="signals")
            tasks.start_soon(_pass_on, noticed, channel, name="notice")
            tasks.start_soon(_carry, channel, worker.close, name="channel")
            await worker.run(channel)
            tasks.cancel_scope.cancel()


async def _obey(signals: AsyncIterator[signal.Signals], close: Callable[[], None], noticed: anyio.Event) -> None:
    async for number in signals:
        if number == signal.SIGUSR1:
            noticed.set()
        else:
            close()


async def _pass_on(noticed: anyio.Event, channel: Channel) -> None:
    await noticed.wait()
    with suppress(WorkerLost):  # the controller is gone, and this process follows it
        await of_controller(channel, "notices", NoticePort).leaving()


async def _carry(channel: Channel, close: Callable[[], None]) -> None:
    await owned("channel", channel.run)
    close()


class _Worker:
    """Hosts one workload in the main task; ``close`` ends it, and with it the process."""

    def __init__(self) -> None:
        self.desk = Desk()
        self.desk.serve("host", HostPort, self)
        self._order: LaunchOrder | None = None
        self._ordered = anyio.Event()
        self._settled = anyio.Event()  # it is open, or never will be
        self._failure: Exception | None = None
        self._opening: anyio.CancelScope | None = None
        self._closing = anyio.Event()

    async def open(self, order: LaunchOrder) -> None:
        """Let the main task open the workload; see ``HostPort.open``."""
        if self._order is not None:
            raise InvariantError("a process hosts one workload")
        self._order = order
        self._ordered.set()
        await self._settled.wait()
        if self._failure is not None:
            raise not_opened(order.spec, self._failure) from self._failure

    def close(self) -> None:
        """End what is being opened, or let what is open close."""
        self._closing.set()
        self._ordered.set()
        if self._opening is not None:
            self._opening.cancel()

    async def run(self, channel: Channel) -> None:
        """Open the workload when told to, keep it open until told to close."""
        await self._ordered.wait()
        order = self._order
        if order is None or self._closing.is_set():
            return
        with anyio.CancelScope() as self._opening:
            await owned("workload", partial(self._host, order, channel))

    async def _host(self, order: LaunchOrder, channel: Channel) -> None:
        inference = of_controller(channel, "inference", InferenceControllerPort) if order.inference else None
        roles = of_controller(channel, "roles", RolesPort) if order.roles else None
        payloads = SharedPayloads(Path(order.payloads), order.reserve_bytes)
        host = Host(site=order.spec.site, payloads=payloads, inference=inference)
        try:
            if order.spec.cpus:  # before anything that computes is imported, and counts them
                os.sched_setaffinity(0, order.spec.cpus)
            async with opened(order.spec, host, roles) as workload:
                await self._stay_open(order, channel, workload)
        except Exception as exc:
            if self._settled.is_set():
                raise
            self._failure = exc
            self._settled.set()
            await self._closing.wait()  # the answer says why, and whoever gets it ends this process

    async def _stay_open(self, order: LaunchOrder, channel: Channel, workload: Any) -> None:
        self._opening = None
        self.desk.serve("workload", PORTS[order.spec.section], workload)
        gc.collect()
        gc.freeze()  # a full collection with torch loaded stops everything for 0.1 s and more
        gc.enable()
        self._settled.set()
        await self._closing.wait()
        await channel.refuse()


if __name__ == "__main__":
    main()
