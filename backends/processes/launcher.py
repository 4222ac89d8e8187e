"""Hosts each workload in a process of its own, and carries the calls."""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

from anyio.abc import TaskGroup, UNIXSocketStream
from anyio.lowlevel import checkpoint

from backends._state import State
from backends._workers import Workers, open_workers
from backends.processes.calls import Desk, LaunchOrder
from backends.processes.child import start_child
from backends.processes.output import LogFile, Output, to_stderr
from backends.processes.process import WorkerProcess
from protocols.backend import LauncherPort, WorkloadSpec
from protocols.errors import Transient
from protocols.inference import InferenceControllerPort
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


class ProcessLauncher(Workers[WorkerProcess]):
    """Starts a process for each workload.

    Args:
        tasks: Owns the tasks that watch over them.
        state: The run's folder on this machine.
        payloads: Folder of the payload store.
        manner: How they are treated.
    """

    def __init__(self, tasks: TaskGroup, state: State, payloads: Path, manner: Manner) -> None:
        super().__init__(tasks, gone_s=manner.patience_s + _MARGIN_S)
        self._state = state
        self._payloads = payloads
        self._manner = manner
        self._numbers = count()

    async def launch(self, spec: WorkloadSpec) -> None:
        """Start a process and open the workload in it; where that fails or is cancelled, nothing remains.

        Raises:
            UserError: Its options are wrong.
            PortFailed: It could not be opened.
            Transient: The system has no room for another process.
        """
        await checkpoint()
        self._expect(spec.worker_id)
        worker = await self._start(spec)
        order = LaunchOrder(
            spec=spec,
            payloads=str(self._payloads),
            reserve_bytes=self._manner.reserve_bytes,
            inference=self.inference is not None,
            roles=self.roles is not None,
        )
        await self._host(spec.worker_id, worker, partial(worker.open, order))

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


def open_launcher(state: State, payloads: Path, manner: Manner) -> AbstractAsyncContextManager[ProcessLauncher]:
    """Open a launcher; the processes that still run when the block ends are ended."""
    return open_workers(lambda tasks: ProcessLauncher(tasks, state, payloads, manner))


_: type[LauncherPort] = ProcessLauncher
