"""Hosts scripted workloads in place of the adapters that the job names."""

import math
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Protocol

import anyio
from anyio.lowlevel import checkpoint

from backends._reachable import Reachable
from backends.sim.engine import SimEngine
from backends.sim.faults import Faults, current_stage
from protocols.backend import LauncherPort, WorkerState, WorkloadSpec
from protocols.errors import InvariantError, UserError, WorkerLost
from protocols.inference import InferenceControllerPort
from protocols.messages import WorkerId

PORT_NAMES = {"engine": "Engine", "train": "Trainer", "reward": "Grader", "episode": "RolloutExecutor"}
"""Section of the job -> the port of its workloads, without the word Port."""


class Hands(Protocol):
    """Makes the workloads of the roles."""

    def __call__(self, spec: WorkloadSpec, inference: InferenceControllerPort | None) -> Any:
        """Return the workload of one worker."""
        ...


class _Worker:
    """One worker: what it runs now, and the calls that are inside it.

    Attributes:
        back_s: When it is there again after a crash; None: it is there.
        leaving: Whether notice was given that its place is about to be taken away; ``taken``: whether it was.
    """

    def __init__(self, spec: WorkloadSpec, make: Callable[[], Any]) -> None:
        self.spec = spec
        self.make = make
        self.workload = make()
        self.back_s: float | None = None
        self.leaving = False
        self.taken = False
        self._calls: dict[anyio.CancelScope, str] = {}

    @property
    def state(self) -> WorkerState:
        """As a launcher knows it; one that is there again has not said so before it is called."""
        gone = self.back_s is not None and anyio.current_time() < self.back_s
        return WorkerState(cause=self.lost().cause, preempted=self.taken) if gone else WorkerState(leaving=self.leaving)

    @contextmanager
    def calling(self, stage: str) -> Generator[Any]:
        """Give the workload for one call, which ends with the worker.

        Raises:
            WorkerLost: It is not there, or it was ended meanwhile.
        """
        if self.back_s is not None:
            if anyio.current_time() < self.back_s:
                raise self.lost()
            self.back_s, self.workload = None, self.make()
        with anyio.CancelScope() as scope:
            self._calls[scope] = stage
            try:
                yield self.workload
            finally:
                del self._calls[scope]
        if scope.cancelled_caught:
            raise self.lost()

    def cut(self) -> tuple[str, ...]:
        """End the calls inside and forget what runs; returns the stages that had made the calls."""
        for scope in self._calls:
            scope.cancel()
        if isinstance(self.workload, SimEngine):
            self.workload.close()
        return tuple(dict.fromkeys(self._calls.values()))

    def lost(self) -> WorkerLost:
        cause = "its place was taken away" if self.taken else "it crashed" if self.back_s else "it was ended"
        return WorkerLost(worker=self.spec.worker_id, cause=cause, preempted=self.taken)


class SimLauncher(Reachable):
    """Runs workloads that ``make`` makes for a role, whatever adapter the job names, over a line that may fail.

    Args:
        make: Makes the workload of a role.
        faults: The line.
        unstopped: Told what an engine still ran when it was killed, unless it is launched again: then it was killed to
            end that.
    """

    def __init__(self, make: Hands, faults: Faults, unstopped: list[str]) -> None:
        super().__init__()
        self._make = make
        self._faults = faults
        self._unstopped = unstopped
        self._ended: dict[WorkerId, list[str]] = {}
        self._workers: dict[WorkerId, _Worker] = {}
        self._down_s: dict[WorkerId, float] = {}
        faults.crash = self.crash
        faults.lose_weights = self.lose_weights

    async def launch(self, spec: WorkloadSpec) -> None:
        """Make a workload; see ``LauncherPort.launch``."""
        await checkpoint()
        if spec.worker_id in self._workers:
            raise InvariantError(f"worker {spec.worker_id} was launched before and not killed")
        await anyio.sleep_until(self._down_s.get(spec.worker_id, -math.inf))
        if spec.section not in PORT_NAMES:
            raise UserError(f"a simulation has no workload for [{spec.section}]")
        for request in self._ended.pop(spec.worker_id, ()):
            self._unstopped.remove(request)
        inference = self.inference
        self._workers[spec.worker_id] = _Worker(spec, lambda: self._make(spec, inference))

    async def call(self, worker_id: WorkerId, method: str, args: tuple[Any, ...]) -> Any:
        """Call a workload's method; see ``LauncherPort.call``."""
        worker = self._workers.get(worker_id)
        if worker is None:
            await checkpoint()
            raise WorkerLost(worker=worker_id, cause="no such worker")
        if worker.back_s is not None:
            await checkpoint()
        name = f"{PORT_NAMES[worker.spec.section]}.{method}"
        with worker.calling(current_stage(method)) as workload:
            return await self._faults.through(name, worker_id, args, lambda: getattr(workload, method)(*args))

    async def poll(self) -> dict[WorkerId, WorkerState]:
        """Return every worker that was launched and not killed."""
        await checkpoint()
        return {name: one.state for name, one in self._workers.items()}

    async def kill(self, worker_id: WorkerId) -> None:
        """End a workload; see ``LauncherPort.kill``."""
        worker = self._workers.pop(worker_id, None)
        if worker is not None:
            if isinstance(worker.workload, SimEngine):
                self._ended[worker_id] = sorted(worker.workload.live)
                self._unstopped.extend(self._ended[worker_id])
            worker.cut()
        await checkpoint()

    def crash(self, worker_id: str, lasts_s: float) -> tuple[str, ...]:
        """Let a worker die; it is there again, empty, after ``lasts_s``, launched anew or not; a trainer only if it is.

        Returns:
            The stages whose calls were inside.
        """
        worker = self._workers.get(WorkerId(worker_id))
        if worker is None:
            return ()
        self._down_s[WorkerId(worker_id)] = anyio.current_time() + lasts_s
        worker.back_s = math.inf if worker.spec.section == "train" else self._down_s[WorkerId(worker_id)]
        return worker.cut()

    def notify(self, worker_id: str) -> None:
        """Give notice that the place of a worker is about to be taken away."""
        if WorkerId(worker_id) in self._workers:
            self._workers[WorkerId(worker_id)].leaving = True

    def take_away(self, worker_id: str) -> bool:
        """Take the place away of which notice was given; returns whether the worker was still there.

        It is not there again unless it is launched anew, which it may be at once.
        """
        worker = self._workers.get(WorkerId(worker_id))
        if worker is None or not worker.state.leaving:
            return False
        worker.taken, worker.back_s = True, math.inf
        worker.cut()
        return True

    def lose_weights(self, worker_id: str) -> None:
        """Let an engine serve nothing until weights are loaded."""
        worker = self._workers.get(WorkerId(worker_id))
        if worker is not None and isinstance(worker.workload, SimEngine):
            worker.workload.lose_weights()

    def workers(self, section: str) -> tuple[WorkerId, ...]:
        """Return the workers of a role, in the order of launching."""
        return tuple(name for name, worker in self._workers.items() if worker.spec.section == section)


_: type[LauncherPort] = SimLauncher
