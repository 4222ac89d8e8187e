"""The actor of a worker: hosts one workload on the event loop of its process, and answers calls to it.

Methods run as tasks of that loop, in whatever order they come: Ray keeps none for such actors.
"""

import gc
import itertools
import os
from functools import partial
from typing import Any, TypeVar

import anyio
import ray
import ray.exceptions as rx
from anyio.abc import TaskGroup

from backends._failures import decode_failure, encode_failure
from backends._hosting import PORTS, described, not_opened, opened
from backends.ray.mailbox import Mailbox
from backends.ray.messages import (
    ASKED,
    TAKEN_BACK,
    Asked,
    Call,
    Facts,
    LaunchOrder,
    Reply,
    as_bytes,
    call_of,
    calls_of,
    replies_of,
)
from backends.ray.order import Withdrawals
from backends.ray.payloads import RayPayloads
from backends.ray.process import prepare, started_at
from backends.ray.stored import Sums
from protocols.adapters import Host
from protocols.aio import Doorbell, open_tasks, owned
from protocols.errors import WorkerLost
from protocols.inference import InferenceControllerPort
from protocols.roles import RolesPort
from protocols.wire import Codec, client

P = TypeVar("P")


class WorkloadActor:
    """Opens a workload in ``host``, which stays until ``close``; the others are called meanwhile.

    Args:
        order: What to be.
        directory: Handle of the payload directory.
    """

    def __init__(self, order: LaunchOrder, directory: Any) -> None:
        prepare(order)
        self._order = order
        self._payloads = RayPayloads(directory, answers_sums=True)
        self._codec = Codec(PORTS[order.spec.section])
        self._workload: Any = None
        self._settled = anyio.Event()  # it is open, or never will be
        self._failure: Exception | None = None
        self._opening = anyio.CancelScope()
        self._closing = anyio.Event()
        self._calls: dict[int, anyio.CancelScope] = {}
        self._call_ended = Doorbell()
        self._withdrawals = Withdrawals()
        self._mailbox = Mailbox()
        self._controller = _Controller(order, self._mailbox)
        self._hosted: TaskGroup

    async def host(self) -> bytes:
        """Open the workload and keep it open until told to close; returns its failure, or nothing."""
        failure = b""
        try:
            with self._opening:
                await owned("workload", self._stay_open)
        except Exception as exc:  # noqa: BLE001 - it is the controller's
            self._failure = exc
            if self._settled.is_set():
                lost = WorkerLost(worker=self._order.spec.worker_id, cause=described(exc))
                lost.__cause__ = exc
                failure = encode_failure(lost)
            else:
                failure = self._why_not_open()
        self._workload = None
        self._settled.set()
        await self._end_calls()
        return failure

    async def _stay_open(self) -> None:
        order = self._order
        inference = self._controller.port("inference", InferenceControllerPort)
        roles = self._controller.port("roles", RolesPort)
        host = Host(site=order.spec.site, payloads=self._payloads, inference=inference)
        async with opened(order.spec, host, roles) as workload, open_tasks() as self._hosted:
            self._opening = anyio.CancelScope()  # what is open closes by itself
            self._workload = workload
            gc.collect()
            gc.freeze()  # a full collection with torch loaded stops everything for 0.1 s and more
            self._settled.set()
            try:
                await self._closing.wait()
            finally:
                self._workload = None  # closing takes a while, whatever it closes for
            await self._end_calls()

    async def facts(self) -> Facts:
        """Return which process this is."""
        pid = os.getpid()
        return Facts(node=ray.get_runtime_context().get_node_id(), pid=pid, started=started_at(pid) or 0)

    async def opened(self) -> bytes:
        """Wait until the workload is open; returns why it is not, or nothing."""
        await self._settled.wait()
        return b"" if self._workload is not None else self._why_not_open()

    def _why_not_open(self) -> bytes:
        error = not_opened(self._order.spec, self._failure)
        if error is not self._failure:
            error.__cause__ = self._failure
        return encode_failure(error)

    async def close(self) -> None:
        """End what is being opened, or let what is open close."""
        self._closing.set()
        if not self._settled.is_set():
            self._opening.cancel()

    async def call(self, call: bytes) -> bytes:
        """Answer one call of the workload's port."""
        return as_bytes(await self._reply_to(call_of(call)))

    async def _reply_to(self, call: Call) -> Reply:
        number, method, args = call
        wanted = self._withdrawals.arrive(number)
        workload = self._workload
        if not wanted or workload is None:
            return TAKEN_BACK
        scope = self._calls[number] = anyio.CancelScope()
        try:
            with scope:
                return await self._answer(workload, method, args)
        finally:
            del self._calls[number]
            self._call_ended.ring()
        return TAKEN_BACK

    async def calls(self, calls: bytes) -> list[None]:
        """Begin to answer calls; the answers come by mail."""
        begun = calls_of(calls)
        for call in begun:
            if self._workload is None:
                self._withdrawals.arrive(call[0])
                self._mailbox.answer(call[0], TAKEN_BACK)
            else:
                self._hosted.start_soon(owned, "call", self._answer_by_mail, call, name=f"call {call[0]}")
        return [None for _ in begun]

    async def _answer_by_mail(self, call: Call) -> None:
        self._mailbox.answer(call[0], await self._reply_to(call))

    async def _answer(self, workload: Any, method: str, args: bytes) -> Reply:
        try:
            arguments = self._codec.decode_args(method, args)
            result = await owned(method, partial(getattr(workload, method), *arguments))
            return self._codec.encode_result(result), None
        except Exception as exc:  # noqa: BLE001 - it is the caller's
            return None, encode_failure(exc)

    async def withdraw(self, number: int) -> None:
        """Cancel a call; nothing of it runs on return, and nothing ever will if it has not come yet."""
        self._withdrawals.withdraw(number)
        if (scope := self._calls.get(number)) is not None:
            scope.cancel()
        while number in self._calls:
            await self._call_ended.wait()

    async def sums(self, objects: list[Any]) -> list[Sums] | None:
        """Return the checksums of objects that this process put; None: one is gone."""
        try:
            return await self._payloads.sums(objects)
        except rx.RayError:
            return None

    async def mail(self) -> bytes:
        """Return what there is for the controller, and within a beat in any case: it is the sign of life."""
        return as_bytes(await self._mailbox.take(self._order.beat_s))

    async def replies(self, replies: bytes) -> list[None]:
        """Take the answers to questions."""
        return [self._controller.take(number, reply) for number, reply in replies_of(replies)]

    async def _end_calls(self) -> None:
        for scope in self._calls.values():
            scope.cancel()
        while self._calls:
            await self._call_ended.wait()


class _Controller:
    """Carries calls to the controller.

    Args:
        order: Whom it answers for.
        mailbox: Where it asks for what there is.
    """

    def __init__(self, order: LaunchOrder, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._codecs = {asked: Codec(ASKED[asked]) for asked in order.asked}
        self._numbers = itertools.count()
        self._waiting: dict[int, anyio.Event] = {}
        self._replies: dict[int, Reply] = {}

    def port(self, asked: Asked, port: type[P]) -> P | None:
        """Return a port that the controller answers for; None: it does not."""
        return client(port, partial(self._ask, asked)) if asked in self._codecs else None

    async def _ask(self, asked: Asked, method: str, args: tuple[Any, ...]) -> Any:
        """Call a method of one of them.

        Cancelling: the controller is told; nobody waits for what it does then.
        """
        codec, number = self._codecs[asked], next(self._numbers)
        answered = self._waiting[number] = anyio.Event()
        self._mailbox.ask((number, asked, method, codec.encode_args(args)))
        try:
            await answered.wait()
        finally:
            del self._waiting[number]
            result, failure = self._replies.pop(number, TAKEN_BACK)
            if not answered.is_set():
                self._mailbox.ask((number, asked, None, b""))
        if failure is not None:
            raise decode_failure(failure)
        if result is None:
            raise WorkerLost(worker="controller", cause="it took its answer back")
        return codec.decode_result(method, result)

    def take(self, number: int, reply: Reply) -> None:
        """Take an answer; one that nobody waits for any more is dropped."""
        if (answered := self._waiting.get(number)) is not None:
            self._replies[number] = reply
            answered.set()
