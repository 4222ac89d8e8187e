"""One process that calls rewards, from the side of the grader."""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE

import anyio
import msgspec
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from backends.graders._child import frame
from backends.graders._reward import Task
from protocols.aio import deadline
from protocols.errors import UserError, WorkerLost
from protocols.grading import FaultKind, Grade, GradeFault

START_DEADLINE_S = 120.0
"""For the import of the user's module, which may bring heavy libraries."""

KILL_DEADLINE_S = 5.0
"""For a killed process to be gone."""

_GONE = (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError, anyio.ClosedResourceError)


class ProcessEnded(Exception):
    """A completion that the process did not survive; ``kind`` and ``detail`` are its fault."""

    def __init__(self, kind: FaultKind, detail: str) -> None:
        super().__init__(detail)
        self.kind: FaultKind = kind
        self.detail = detail


class RewardProcess:
    """Speaks the frames of ``_child``. One task at a time; after ``ProcessEnded`` it is only good to be killed."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._tasks = process.stdin
        self._answers = BufferedByteReceiveStream(process.stdout)
        self._decoder = msgspec.msgpack.Decoder(Grade | GradeFault)

    @property
    def pid(self) -> int:
        """Process id, and id of the process group of all that the user's code starts."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs, as far as is known."""
        return self._process.returncode is None

    async def load(self) -> None:
        """Wait until the function is loaded.

        Raises:
            UserError: It cannot be.
            WorkerLost: The process ended before.
        """
        try:
            why = msgspec.msgpack.decode(await self._receive(), type=str | None)
        except _GONE:
            raise WorkerLost(worker="reward process", cause=f"it ended at its start, {await self._exit()}") from None
        if why is not None:
            mend = "correct it there: a bare interpreter imports it"
            raise UserError(f"reward.function cannot be loaded in a worker process: {why}; {mend}")

    async def ask(self, task: Task) -> None:
        """Hand over a task; ``answer`` then gives one answer a completion.

        Raises:
            ProcessEnded: It is gone.
        """
        try:
            await self._tasks.send(frame(task))
        except _GONE:
            raise ProcessEnded("crashed", await self._exit()) from None

    async def answer(self, deadline_s: float) -> Grade | GradeFault:
        """Wait for the next answer.

        Raises:
            ProcessEnded: It crashed, or the answer did not come within ``deadline_s``.
        """
        with anyio.move_on_after(deadline_s):
            try:
                return self._decoder.decode(await self._receive())
            except _GONE:
                raise ProcessEnded("crashed", await self._exit()) from None
        raise ProcessEnded("timed_out", f"it did not return within {deadline_s:g} s")

    async def _receive(self) -> bytes:
        head = await self._answers.receive_exactly(4)
        return await self._answers.receive_exactly(int.from_bytes(head))

    async def _exit(self) -> str:
        code = await self._process.wait()
        return (
            f"its process was killed by {signal.Signals(-code).name}" if code < 0 else f"its process exited with {code}"
        )

    def kill(self) -> None:
        """End the process and all that it started, also where the user's code hangs. Idempotent."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    async def reap(self) -> None:
        """Wait for the end of a killed process, and close what led to it."""
        await self._process.aclose()


async def start_process(function: str, job_dir: str) -> RewardProcess:
    """Start a process that calls ``function``; it is ready on return.

    A bare interpreter, not ``multiprocessing``: that runs the caller's main script again in each process,
    and leaves a fork server and a resource tracker behind.

    Cancelling: nothing remains.

    Raises:
        UserError: The function cannot be loaded there.
        WorkerLost: The process ended at its start.
        DeadlineExceeded: It was not ready within ``START_DEADLINE_S``.
    """
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    process = RewardProcess(
        await anyio.open_process(
            [sys.executable, "-m", "backends.graders._child", function, job_dir],
            stdin=PIPE,
            stdout=PIPE,
            stderr=None,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,  # a Ctrl-C in the terminal is for the run, not for its rewards
        )
    )
    try:
        with deadline("start of a reward process", START_DEADLINE_S):
            await process.load()
    except BaseException:
        process.kill()
        with anyio.move_on_after(KILL_DEADLINE_S, shield=True):
            await process.reap()
        raise
    return process
