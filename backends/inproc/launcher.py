"""Hosts workloads in this process: a task each, and calls that are plain method calls."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import anyio
import msgspec
import structlog
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from backends._hosting import PORTS, not_opened, opened
from backends._reachable import Reachable
from backends.inproc.worker import CLOSE_DEADLINE_S, Worker
from protocols.adapters import Host
from protocols.aio import open_tasks
from protocols.backend import LauncherPort, PayloadPort, WorkerState, WorkloadSpec
from protocols.errors import InvariantError, PortFailed, WorkerLost
from protocols.inference import InferenceControllerPort
from protocols.messages import WorkerId
from protocols.roles import RolesPort
from protocols.wire import over_codec

log = structlog.get_logger()


class InprocLauncher(Reachable):
    """Opens each workload in a task of its own and calls it directly.

    An exception that is no ``ConductorError`` is a bug of the workload; in one process it reaches the
    caller of ``call`` unchanged, with its traceback.

    Args:
        tasks: Owns the workloads' tasks.
        payloads: What workloads find as ``Host.payloads``.
        encode_messages: Encode and decode the messages of every call, as other backends must.
    """

    def __init__(self, tasks: TaskGroup, payloads: PayloadPort, *, encode_messages: bool = False) -> None:
        super().__init__()
        self._tasks = tasks
        self._payloads = payloads
        self._encode_messages = encode_messages
        self._workers: dict[WorkerId, Worker] = {}

    async def launch(self, spec: WorkloadSpec) -> None:
        """Open a workload; see ``LauncherPort.launch``. Where it fails or is cancelled, nothing remains."""
        await checkpoint()
        if self._encode_messages:
            spec = msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=WorkloadSpec)
        if spec.worker_id in self._workers:
            raise InvariantError(f"worker {spec.worker_id} was launched before and not killed")
        if spec.environment:  # a process has one, and others read it as well
            log.warning("worker.environment_ignored", worker_id=spec.worker_id, names=sorted(spec.environment))
        inference = self.inference and self._wrapping(InferenceControllerPort)(self.inference)
        roles = self.roles and self._wrapping(RolesPort)(self.roles)
        host = Host(site=spec.site, payloads=self._payloads, inference=inference)
        worker = Worker(spec.worker_id, opened(spec, host, roles), self._wrapping(PORTS[spec.section]))
        self._workers[spec.worker_id] = worker
        self._tasks.start_soon(worker.run, name=f"worker {spec.worker_id}")
        try:
            await worker.settled.wait()
        except BaseException:
            with anyio.move_on_after(2 * CLOSE_DEADLINE_S, shield=True):
                await self.kill(spec.worker_id)
            raise
        if worker.closed.is_set():
            self._workers.pop(spec.worker_id, None)
            raise not_opened(spec, worker.failure) from worker.failure

    def _wrapping(self, port: type) -> Callable[[Any], Any]:
        return partial(over_codec, port) if self._encode_messages else _as_it_is

    async def call(self, worker_id: WorkerId, method: str, args: tuple[Any, ...]) -> Any:
        """Call a workload's method; see ``LauncherPort.call``. It ends when the workload is killed or dies."""
        worker = self._workers.get(worker_id)
        if worker is None:
            await checkpoint()
            raise WorkerLost(worker=worker_id, cause="no such worker")
        with worker.calling() as port:
            return await getattr(port, method)(*args)

    async def poll(self) -> dict[WorkerId, WorkerState]:
        """Return every worker that was launched and not killed."""
        await checkpoint()
        return {name: one.state for name, one in self._workers.items()}

    def expose(self) -> None:
        """End the shield of every worker."""
        for worker in self._workers.values():
            worker.expose()

    async def kill(self, worker_id: WorkerId) -> None:
        """End a workload; see ``LauncherPort.kill``.

        Cancelling: it goes on closing; kill it again to wait for its end.

        Raises:
            PortFailed: It holds on to its task through cancellation: one process has no stronger means.
        """
        worker = self._workers.get(worker_id)
        if worker is not None:
            await worker.end()
            self._workers.pop(worker_id, None)
        await checkpoint()


def _as_it_is(port: Any) -> Any:
    return port


@asynccontextmanager
async def open_launcher(payloads: PayloadPort, *, encode_messages: bool = False) -> AsyncGenerator[InprocLauncher]:
    """Open a launcher; the workloads that still run when the block ends are ended, the last one first."""
    async with open_tasks() as tasks:
        launcher = InprocLauncher(tasks, payloads, encode_messages=encode_messages)
        try:
            yield launcher
        finally:
            try:
                with anyio.move_on_after(CLOSE_DEADLINE_S, shield=True):
                    for worker_id in reversed(await launcher.poll()):
                        with suppress(PortFailed):  # logged; the error that ends the block is worth more
                            await launcher.kill(worker_id)
            finally:
                launcher.expose()
                tasks.cancel_scope.cancel()


_: type[LauncherPort] = InprocLauncher
