"""One worker process, from its start to its end, as the controller sees it."""

import signal
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import structlog
from anyio.abc import TaskGroup, UNIXSocketStream
from anyio.lowlevel import checkpoint

from backends._hosting import PORTS, not_opened
from backends._leftovers import end_marked
from backends.processes.calls import Desk, HostPort, LaunchOrder, NoticePort, call_port
from backends.processes.channel import Channel, ChannelEnded
from backends.processes.child import Child
from backends.processes.output import Output
from protocols.aio import open_tasks, owned
from protocols.backend import WorkerState, WorkloadSpec
from protocols.errors import PortFailed, WorkerLost
from protocols.wire import Codec

log = structlog.get_logger(__name__)

_BEATS = 3  # unanswered ones, one after the other, of which the controller itself was awake for each
_LAST_WORDS_S = 1.0  # to read what an ended process left in its pipes
_UNKILLABLE_S = 10.0


class ProcessEnded(Exception):
    """The process ended before its workload was open."""


class WorkerProcess:
    """Watches over a process that was started: its channel, its output, its heartbeat, its end.

    ``run`` must be a task. It is shielded from the cancellation of those around it until the process has ended or
    ``expose`` is called: whoever is cancelled must find the worker alive, to abort what it runs.

    Args:
        spec: What it hosts.
        child: Its process.
        stream: Over ``child.socket``.
        desk: Answers its calls.
        output: Of ``child.output``.
        heartbeat_s: For how long it may be silent.
        patience_s: How long it may take to close.
    """

    def __init__(
        self,
        spec: WorkloadSpec,
        child: Child,
        stream: UNIXSocketStream,
        desk: Desk,
        output: Output,
        *,
        heartbeat_s: float,
        patience_s: float,
    ) -> None:
        self._spec = spec
        self._child = child
        self._stream = stream
        self._output = output
        self._heartbeat_s = heartbeat_s
        self._patience_s = patience_s
        self._channel = Channel(stream, desk.answer)
        self._codec = Codec(PORTS[spec.section])
        self._scope = anyio.CancelScope()
        self._closing = anyio.Event()
        self._ended = anyio.Event()
        self._verdict = ""
        self._opened = False
        self._leaving = False
        desk.serve("notices", NoticePort, self)

    @property
    def state(self) -> WorkerState:
        """Whether it runs, as far as is known."""
        pid = self._child.process.pid
        if not self._ended.is_set():
            return WorkerState(pid=pid, leaving=self._leaving)
        return WorkerState(pid=pid, cause=self._cause(), preempted=self._preempted)

    @property
    def _preempted(self) -> bool:
        """Whether it closed because somebody other than its launcher sent it SIGTERM, or was not there for a notice."""
        ended = self._child.process.returncode in {0, -signal.SIGTERM, -signal.SIGUSR1}
        return ended and not (self._closing.is_set() or self._verdict)

    async def leaving(self) -> None:
        """Take note that its place is about to be taken away (``NoticePort``)."""
        await checkpoint()
        log.warning("worker.noticed", worker_id=self._spec.worker_id)
        self._leaving = True

    async def open(self, order: LaunchOrder) -> None:
        """Let it open its workload.

        Raises:
            ConductorError: Why it could not.
        """
        try:
            await call_port(self._channel, "host", Codec(HostPort), "open", (order,))
        except ChannelEnded as exc:
            ended = exc
        else:
            self._opened = True
            return
        if self._closing.is_set():
            raise not_opened(self._spec, None) from ended
        await self._ended.wait()
        raise not_opened(self._spec, ProcessEnded(self._cause())) from ended

    async def call(self, method: str, args: tuple[Any, ...]) -> Any:
        """Call a method of its workload.

        Raises:
            WorkerLost: It is gone, or not there yet.
            ConductorError: What the workload raised.
        """
        if not self._opened:
            await checkpoint()
            raise WorkerLost(worker=self._spec.worker_id, cause="it is being opened")
        try:
            return await call_port(self._channel, "workload", self._codec, method, args)
        except ChannelEnded as exc:
            ended = exc
        if not self._closing.is_set():
            await self._ended.wait()
        raise WorkerLost(worker=self._spec.worker_id, cause=self._cause()) from ended

    async def end(self) -> None:
        """End its calls, let it close, and end it by force when that takes too long. Idempotent.

        Cancelling: it goes on closing.

        Raises:
            PortFailed: The system does not let go of it.
        """
        self._closing.set()
        self._channel.end()
        with anyio.move_on_after(self._patience_s + _UNKILLABLE_S):
            await self._ended.wait()
        await checkpoint()
        if not self._ended.is_set():
            raise PortFailed(f"worker {self._spec.worker_id} was killed and does not end")

    def expose(self) -> None:
        """Let the cancellation of those around it reach it: it is killed."""
        self._scope.shield = False

    async def run(self) -> None:
        """Watch over it until it has ended; nothing of it runs on return, whatever ends this."""
        try:
            with self._scope:
                self._scope.shield = True
                await owned(f"worker {self._spec.worker_id}", self._watch)
        except Exception:
            log.exception("worker.unwatched", worker_id=self._spec.worker_id)
        finally:
            self._child.kill()
            self._child.reap()
            self._channel.end()
            self._ended.set()

    async def _watch(self) -> None:
        async with open_tasks() as tasks:
            for name, body in (("close", self._close), ("heartbeat", self._beat)):
                tasks.start_soon(owned, name, body, name=f"{name} of {self._spec.worker_id}")
            async with anyio.create_task_group() as pipes:
                carry = partial(self._carry, tasks)
                pipes.start_soon(owned, "channel", carry, name=f"channel of {self._spec.worker_id}")
                pipes.start_soon(owned, "output", self._output.pump, name=f"output of {self._spec.worker_id}")
                await anyio.wait_readable(self._child.pidfd)
                self._child.kill()  # its group
                await anyio.to_thread.run_sync(end_marked, self._child.mark)  # and what left the group
                pipes.cancel_scope.deadline = anyio.current_time() + _LAST_WORDS_S
            tasks.cancel_scope.cancel()

    async def _carry(self, tasks: TaskGroup) -> None:
        """Run the channel; a process that has left it has as long to end as one that was told to."""
        await self._channel.run()
        await self._stream.aclose()
        tasks.start_soon(self._lose_patience, "it left its channel", name=f"patience with {self._spec.worker_id}")

    async def _close(self) -> None:
        await self._closing.wait()
        self._child.terminate()
        await self._lose_patience("it was told to close")

    async def _lose_patience(self, since: str) -> None:
        await anyio.sleep(self._patience_s)
        self._kill(f"{since} and did not end within {self._patience_s:g} s")

    def _kill(self, why: str) -> None:
        log.warning("worker.killed", worker_id=self._spec.worker_id, why=why)
        self._verdict = why
        self._child.kill()

    async def _beat(self) -> None:
        """Kill it when it does not answer; until it has first been heard it is starting, which its caller bounds."""
        missed = 0
        while missed < _BEATS:
            heard = self._channel.received
            self._channel.ping()
            await anyio.sleep(self._heartbeat_s / _BEATS)
            missed = missed + 1 if 0 < heard == self._channel.received else 0
        self._kill(f"it did not answer for {self._heartbeat_s:g} s")

    def _cause(self) -> str:
        if not self._ended.is_set():
            return self._verdict or "it was ended"
        said = f"; it last wrote:\n{self._output.end}" if self._output.end else ""
        return ", ".join(part for part in (self._verdict, self._child.ending()) if part) + said
