"""One worker, from the start of its actor to the end of its process, as the controller sees it."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import ray
import ray.exceptions as rx
import structlog
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from backends._failures import decode_failure
from backends._hosting import PORTS, described, not_opened
from backends.ray.answers import Answers
from backends.ray.calling import Calls
from backends.ray.calls import result_of
from backends.ray.messages import TAKEN_BACK, Asked, Facts, LaunchOrder, Mail, mail_of
from backends.ray.notices import Notices
from backends.ray.process import end_worker
from backends.ray.session import Session
from protocols.aio import open_tasks, owned
from protocols.backend import WorkerState
from protocols.errors import ConductorError, PortFailed, WorkerLost
from protocols.wire import Codec

log = structlog.get_logger(__name__)

_BEATS = 3  # unanswered ones, one after the other, of which the controller itself was awake for each
_UNKILLABLE_S = 10.0


class ActorEnded(Exception):
    """The actor ended before its workload was open."""


class RayWorker:
    """Watches over an actor that was started: its questions, its heartbeat, its end.

    ``run`` must be a task. It is shielded from the cancellation of those around it until the process has ended or
    ``expose`` is called: whoever is cancelled must find the worker alive, to abort what it runs.

    Args:
        order: What it hosts.
        actor: Handle of its ``WorkloadActor``.
        session: The connection.
        notices: Knows which nodes are about to be taken away.
        ports: Answer its questions.
        heartbeat_s: For how long it may be silent.
        patience_s: How long it may take to close.
    """

    def __init__(
        self,
        order: LaunchOrder,
        actor: Any,
        session: Session,
        notices: Notices,
        ports: Mapping[Asked, Any],
        *,
        heartbeat_s: float,
        patience_s: float,
    ) -> None:
        self._order = order
        self._name = order.spec.worker_id
        self._actor = actor
        self._session = session
        self._notices = notices
        self._ports = ports
        self._heartbeat_s = heartbeat_s
        self._patience_s = patience_s
        self._codec = Codec(PORTS[order.spec.section])
        self._asked = Calls(actor, self._name)
        self._calls: dict[anyio.CancelScope, None] = {}
        self._scope = anyio.CancelScope()
        self._closing = anyio.Event()
        self._ended = anyio.Event()
        self._facts: Facts | None = None
        self._opened = False
        self._failure: Exception | None = None
        self._said = b""  # its own failure, as it told of it
        self._verdict = ""
        self._left: list[int] = []

    @property
    def state(self) -> WorkerState:
        """Whether it runs, as far as is known."""
        facts = self._facts
        pid = None if facts is None else facts.pid
        if not self._ended.is_set():
            return WorkerState(pid=pid, leaving=facts is not None and facts.node in self._notices.nodes)
        lost = self._lost()
        return WorkerState(pid=pid, cause=lost.cause, preempted=lost.preempted)

    async def open(self) -> None:
        """Wait until its workload is open.

        Raises:
            ConductorError: Why it is not.
        """
        told: bytes | None = None
        with suppress(ConductorError), self._calling():  # what ended it is known when it has ended
            told = await result_of(self._actor.opened.remote(), self._name)
        if told:
            raise decode_failure(told)
        if told is None:
            if self._closing.is_set():
                raise not_opened(self._order.spec, None)
            await self._ended.wait()
            if self._said:
                raise decode_failure(self._said)
            raise not_opened(self._order.spec, ActorEnded(self._lost().cause)) from self._failure
        self._opened = True

    async def call(self, method: str, args: tuple[Any, ...]) -> Any:
        """Call a method of its workload.

        Raises:
            WorkerLost: It is gone, or not there yet.
            ConductorError: What the workload raised.
        """
        if not self._opened:
            await checkpoint()
            raise WorkerLost(worker=self._name, cause="it is being opened")
        result, failure = TAKEN_BACK
        try:
            with self._calling():
                result, failure = await self._asked.call(method, self._codec.encode_args(args))
        except WorkerLost:
            pass  # what ended it is known when it has ended
        if failure is not None:
            raise decode_failure(failure)
        if result is None:
            if not self._closing.is_set():
                await self._ended.wait()
            raise self._lost() from self._failure
        return self._codec.decode_result(method, result)

    async def end(self) -> None:
        """End its calls, let it close, and end it by force when that takes too long. Idempotent.

        Cancelling: it goes on closing.

        Raises:
            PortFailed: The system does not let go of it.
        """
        self._closing.set()
        for scope in self._calls:
            scope.cancel()
        with anyio.move_on_after(self._patience_s + 2 * _UNKILLABLE_S):
            await self._ended.wait()
        await checkpoint()
        if self._left or not self._ended.is_set():
            raise PortFailed(f"worker {self._name} was killed and does not end: {self._left}")

    def expose(self) -> None:
        """Let the cancellation of those around it reach it: it is killed."""
        self._scope.shield = False

    async def run(self) -> None:
        """Watch over it until it has ended; nothing of it runs on return, whatever ends this."""
        try:
            with self._scope:
                self._scope.shield = True
                await owned(f"worker {self._name}", self._watch)
        except Exception:
            log.exception("worker.unwatched", worker_id=self._name)
        finally:
            self._kill_actor()
            with anyio.move_on_after(_UNKILLABLE_S, shield=True):
                await self._gone()
            self._ended.set()
            for scope in self._calls:
                scope.cancel()

    async def _watch(self) -> None:
        async with open_tasks() as tasks:
            tasks.start_soon(self._close, name=f"closing of {self._name}")
            try:
                self._facts = await result_of(self._actor.facts.remote(), self._name)
                with anyio.CancelScope() as hosted:
                    listen = partial(self._listen, tasks, hosted)
                    tasks.start_soon(owned, "mail", listen, name=f"mail of {self._name}")
                    self._said = await result_of(self._actor.host.remote(), self._name)
                    self._failure = decode_failure(self._said) if self._said else None
            except ConductorError as exc:
                self._failure = exc
            tasks.cancel_scope.cancel()

    async def _close(self) -> None:
        await self._closing.wait()
        _told = self._actor.close.remote()
        await anyio.sleep(self._patience_s)
        self._kill(f"it was told to close and did not end within {self._patience_s:g} s")

    async def _listen(self, tasks: TaskGroup, hosted: anyio.CancelScope) -> None:
        """Take its mail, and kill it when it has none and does not say so either."""
        answers = Answers(self._actor, self._ports, tasks)
        try:
            while (mail := await self._mail()) is not None:
                questions, replies = mail
                for question in questions:
                    answers.give(question)
                for number, reply in replies:
                    self._asked.take(number, reply)
        except ConductorError as exc:  # it ended, and of its two open calls this one was told so first
            self._failure = exc
            hosted.cancel()
            return
        self._kill(f"it did not answer for {self._heartbeat_s:g} s")

    async def _mail(self) -> Mail | None:
        """Return what it has; None where it is open and silent: while it starts, its caller bounds that."""
        mail = self._actor.mail.remote()
        missed = 0
        while missed < _BEATS:
            with anyio.move_on_after(self._heartbeat_s / _BEATS):
                return mail_of(await result_of(mail, self._name))
            missed = missed + 1 if self._opened else 0
        return None

    @contextmanager
    def _calling(self) -> Generator[anyio.CancelScope]:
        """Cancel what is in the block when the worker ends."""
        with anyio.CancelScope() as scope:
            self._calls[scope] = None
            try:
                yield scope
            finally:
                del self._calls[scope]

    def _kill(self, why: str) -> None:
        log.warning("worker.killed", worker_id=self._name, why=why)
        self._verdict = why
        self._kill_actor()

    def _kill_actor(self) -> None:
        with suppress(rx.RayError, ValueError):  # it is gone, or so is the cluster
            ray.kill(self._actor, no_restart=True)

    async def _gone(self) -> None:
        """Wait until its process has ended, and end what that had started."""
        facts, mark = self._facts, self._order.mark
        if facts is None:
            return
        if facts.node == self._session.node:
            self._left = await anyio.to_thread.run_sync(end_worker, facts, mark)
            return
        there = NodeAffinitySchedulingStrategy(facts.node, soft=False)
        with suppress(ConductorError):  # the node is gone, and everything on it
            ending = ray.remote(end_worker).options(num_cpus=0, max_retries=0, scheduling_strategy=there)
            self._left = await result_of(ending.remote(facts, mark), self._name)

    def _lost(self) -> WorkerLost:
        failure = self._failure
        if self._verdict or failure is None:
            return WorkerLost(worker=self._name, cause=self._verdict or "it was ended")
        if isinstance(failure, WorkerLost):
            return WorkerLost(worker=self._name, cause=failure.cause, preempted=failure.preempted)
        return WorkerLost(worker=self._name, cause=described(failure))
