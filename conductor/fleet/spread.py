"""One port over equal workers: a call goes to the one with the fewest calls open, of those that are there."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

import anyio

from conductor.fleet.attendance import Attendance
from protocols.aio import owned
from protocols.errors import Transient
from protocols.grading import GradeReport, GradeRequest, GraderPort
from protocols.inference import AbortReport
from protocols.messages import WorkerId
from protocols.rollouts import GroupReceipt, RolloutExecutorPort, RolloutLease

P = TypeVar("P")


class LeastBusy(Generic[P]):
    """Some workers, and how many calls are open at each."""

    def __init__(self, workers: Mapping[WorkerId, P], attendance: Attendance) -> None:
        self.workers = workers
        self._attendance = attendance
        self._open = dict.fromkeys(workers, 0)

    @asynccontextmanager
    async def lend(self) -> AsyncGenerator[P]:
        """Give the worker with the fewest calls open, the first of several, for one call; wait while all are away."""
        await self._attendance.wait_for(self.workers)
        there = [name for name in self._open if name not in self._attendance.away]
        name = min(there or self._open, key=self._open.__getitem__)
        self._open[name] += 1
        try:
            yield self.workers[name]
        finally:
            self._open[name] -= 1


class Graders:
    """Graders as one (``GraderPort``)."""

    def __init__(self, workers: Mapping[WorkerId, GraderPort], attendance: Attendance) -> None:
        self._graders = LeastBusy(workers, attendance)

    async def grade(self, request: GradeRequest) -> GradeReport:
        """Let one of them grade."""
        async with self._graders.lend() as grader:
            return await grader.grade(request)


class Executors:
    """Executors as one (``RolloutExecutorPort``)."""

    def __init__(self, workers: Mapping[WorkerId, RolloutExecutorPort], attendance: Attendance) -> None:
        self._executors = LeastBusy(workers, attendance)

    async def generate(self, lease: RolloutLease) -> GroupReceipt:
        """Let one of them play."""
        async with self._executors.lend() as executor:
            return await executor.generate(lease)

    async def abort(self, prefix: str) -> AbortReport:
        """Abort at all of them, for an abort may overtake its lease; one that does not answer is unconfirmed."""
        reports: list[AbortReport] = []
        failures: list[Exception] = []

        async def abort(name: WorkerId, executor: RolloutExecutorPort) -> None:
            try:
                reports.append(await owned(f"abort at {name}", lambda: executor.abort(prefix)))
            except Transient:
                reports.append(AbortReport(unconfirmed=frozenset({name})))
            except Exception as exc:  # noqa: BLE001 - the others are still asked; raised below, and no group of it
                failures.append(exc)

        async with anyio.create_task_group() as tasks:
            for name, executor in self._executors.workers.items():
                tasks.start_soon(abort, name, executor, name=f"abort at {name}")
        if failures:
            raise failures[0]
        return AbortReport(
            confirmed=frozenset[str]().union(*(report.confirmed for report in reports)),
            unconfirmed=frozenset[str]().union(*(report.unconfirmed for report in reports)),
        )


_g: type[GraderPort] = Graders
_e: type[RolloutExecutorPort] = Executors
