"""Hosts each workload in a process of its own, and carries the calls."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import TaskGroup, UNIXSocketStream
from anyio.lowlevel import checkpoint

from backends._reachable import Reachable
from backends._state import State
from backends.processes.calls import Desk, LaunchOrder
from backends.processes.child import start_child
from backends.processes.output import LogFile, Output, to_stderr
from backends.processes.process import WorkerProcess
from protocols.aio import open_tasks
from protocols.backend import LauncherPort, WorkerState, WorkloadSpec
from protocols.errors import InvariantError, PortFailed, Transient, WorkerLost
from protocols.inference import InferenceControllerPort
from protocols.messages import WorkerId
from protocols.roles import RolesPort

_MARGIN_S = 15.0  # beyond the patience: what the kernel may take to end a killed process


@dataclass(frozen=True, kw_only=True)
class Manner:
    """How workers are treated.

    Attributes:
        heartbeat_s: For how long one may be silent.
        patience_s: How long one may take to close.
        compute_processes: How many share the CPUs, where nothing binds them.
        reserve_bytes: What must stay free where bulk data lies.
    """

    heartbeat_s: float
    patience_s: float
    compute_processes: int
    reserve_bytes: int


class ProcessLauncher(Reachable):
    """Starts a process for each workload.

    Args:
        tasks: Owns the tasks that watch over them.
        state: The run's folder on this machine.
        payloads: Folder of the payload store.
        manner: How they are treated.
    """

    def __init__(self, tasks: TaskGroup, state: State, payloads: Path, manner: Manner) -> None:
        super().__init__()
        self._tasks = tasks
        self._state = state
        self._payloads = payloads
        self._manner = manner
        self._numbers = count()
        self._workers: dict[WorkerId, WorkerProcess] = {}

    async def launch(self, spec: WorkloadSpec) -> None:
        """Start a process and open the workload in it; where that fails or is cancelled, nothing remains.

        Raises:
            UserError: Its options are wrong.
            PortFailed: It could not be opened.
            Transient: The system has no room for another process.
        """
        await checkpoint()
        if spec.worker_id in self._workers:
            raise InvariantError(f"worker {spec.worker_id} was launched before and not killed")
        worker = await self._start(spec)
        self._workers[spec.worker_id] = worker
        self._tasks.start_soon(worker.run, name=f"worker {spec.worker_id}")
        order = LaunchOrder(
            spec=spec,
            payloads=str(self._payloads),
            reserve_bytes=self._manner.reserve_bytes,
            inference=self.inference is not None,
            roles=self.roles is not None,
        )
        try:
            await worker.open(order)
        except BaseException:
            with anyio.move_on_after(self._manner.patience_s + _MARGIN_S, shield=True):
                await self.kill(spec.worker_id)
            raise

    async def _start(self, spec: WorkloadSpec) -> WorkerProcess:
        mark = f"{self._state.folder}:{next(self._numbers)}:"
        try:
            child = start_child(spec, mark, compute_processes=self._manner.compute_processes)
        except OSError as exc:
            raise Transient(f"no process can be started for {spec.worker_id}: {exc}") from exc
        try:
            stream = await UNIXSocketStream.from_socket(child.socket)
        except BaseException:
            child.kill()
            child.reap()
            raise
        desk = Desk()
        if self.inference is not None:
            desk.serve("inference", InferenceControllerPort, self.inference)
        if self.roles is not None:
            desk.serve("roles", RolesPort, self.roles)
        run_dir = spec.site.run_dir
        write = to_stderr if run_dir is None else LogFile(run_dir, spec.worker_id).write
        output = Output(child.output, spec.worker_id, write)
        manner = self._manner
        return WorkerProcess(
            spec, child, stream, desk, output, heartbeat_s=manner.heartbeat_s, patience_s=manner.patience_s
        )

    async def call(self, worker_id: WorkerId, method: str, args: tuple[Any, ...]) -> Any:
        """Call a workload's method; see ``LauncherPort.call``. It ends when the process does.

        It is on its way before this first yields: an abort is submitted before anything is awaited.
        """
        worker = self._workers.get(worker_id)
        if worker is None:
            await checkpoint()
            raise WorkerLost(worker=worker_id, cause="no such worker")
        return await worker.call(method, args)

    async def poll(self) -> dict[WorkerId, WorkerState]:
        """Return every worker that was launched and not killed."""
        await checkpoint()
        return {name: worker.state for name, worker in self._workers.items()}

    async def kill(self, worker_id: WorkerId) -> None:
        """End a process: it is told to close, and killed when it takes too long; see ``LauncherPort.kill``.

        Cancelling: it goes on closing; kill it again to wait for its end.

        Raises:
            PortFailed: The system does not let go of it.
        """
        await checkpoint()
        worker = self._workers.get(worker_id)
        if worker is not None:
            await worker.end()
            if self._workers.get(worker_id) is worker:  # else another call did, and it may be launched again
                del self._workers[worker_id]

    async def end_all(self) -> None:
        """End every process, all at once."""

        async def end(worker_id: WorkerId) -> None:
            with suppress(PortFailed):  # the error that ends the block is worth more
                await self.kill(worker_id)

        async with anyio.create_task_group() as tasks:
            for worker_id in self._workers:
                tasks.start_soon(end, worker_id, name=f"end of {worker_id}")

    def expose(self) -> None:
        """End the shield of every worker."""
        for worker in self._workers.values():
            worker.expose()


@asynccontextmanager
async def open_launcher(state: State, payloads: Path, manner: Manner) -> AsyncGenerator[ProcessLauncher]:
    """Open a launcher; the processes that still run when the block ends are ended."""
    async with open_tasks() as tasks:
        launcher = ProcessLauncher(tasks, state, payloads, manner)
        try:
            yield launcher
        finally:
            try:
                with anyio.move_on_after(manner.patience_s + _MARGIN_S, shield=True):
                    await launcher.end_all()
            finally:
                launcher.expose()
                tasks.cancel_scope.cancel()


_: type[LauncherPort] = ProcessLauncher
