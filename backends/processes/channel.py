"""Calls in both directions over one stream, any number at a time."""

import itertools
from collections.abc import Awaitable, Callable
from functools import partial

import anyio
import msgspec
import structlog
from anyio.abc import ByteStream, TaskGroup
from anyio.lowlevel import checkpoint

from backends._failures import decode_failure, encode_failure
from backends.processes.frames import BadFrame, Chunk, ChunkReader, Kind
from backends.processes.outbox import Outbox
from protocols.aio import Doorbell, open_tasks, owned
from protocols.errors import ConductorError, PortFailed

log = structlog.get_logger(__name__)

Answer = Callable[[bytes], Awaitable[bytes]]
"""Takes the body of a call and returns that of its result, or raises."""

_GONE = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError)


class ChannelEnded(Exception):
    """The channel ended before the answer came."""


class _Call:
    """A call of ours that waits for its answer."""

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.answered = anyio.Event()
        self.parts = bytearray()
        self.result: bytes | ConductorError = b""


class Channel:
    """One end. ``run`` reads and writes; calls may be made before it, and end with it.

    A message that cannot be understood harms the call that it belongs to and nothing else.

    Args:
        stream: Its other end runs a ``Channel`` too. The caller closes it.
        answer: Answers the calls that come.
    """

    def __init__(self, stream: ByteStream, answer: Answer) -> None:
        self._stream = stream
        self._answer = answer
        self._outbox = Outbox()
        self._numbers = itertools.count()
        self._calls: dict[int, _Call] = {}
        self._halves: dict[int, bytearray] = {}
        self._answering: dict[int, anyio.CancelScope] = {}
        self._answer_ended = Doorbell()
        self._ended = False
        self._refusing = False
        self.received = 0

    async def call(self, body: bytes) -> bytes:
        """Send a call and wait for its answer; it is on its way before this first yields, unless others wait before it.

        Cancelling: the other end is told; nobody waits for what it does then.

        Raises:
            ChannelEnded: The other end is gone, or ``end`` was called.
            ConductorError: What the other end raised.
        """
        if self._ended:
            await checkpoint()
            raise ChannelEnded
        number = next(self._numbers)
        call = self._calls[number] = _Call()
        with call.scope:
            try:
                await self._outbox.send(Kind.CALL, number, body)
                await call.answered.wait()
            finally:
                del self._calls[number]
                if not call.answered.is_set():
                    self._outbox.post(Kind.CANCEL, number)
        if call.scope.cancelled_caught:
            raise ChannelEnded
        if isinstance(call.result, ConductorError):
            raise call.result
        return call.result

    def ping(self) -> None:
        """Ask for a sign of life; it counts in ``received``, as everything does."""
        self._outbox.post(Kind.PING)

    def end(self) -> None:
        """Let every call of ours end as ``ChannelEnded``, now and from now on."""
        self._ended = True
        for call in self._calls.values():
            call.scope.cancel()

    async def refuse(self) -> None:
        """Answer no more calls, and cancel those that are being answered; none is on return."""
        self._refusing = True
        for scope in self._answering.values():
            scope.cancel()
        while self._answering:
            await self._answer_ended.wait()

    async def run(self) -> None:
        """Read and write until the stream ends; the calls that are being answered then are cancelled."""
        try:
            async with open_tasks() as tasks:
                tasks.start_soon(self._write, tasks, name="channel writer")
                await owned("channel reader", partial(self._read, tasks))
                tasks.cancel_scope.cancel()
        finally:
            self.end()

    async def _write(self, tasks: TaskGroup) -> None:
        try:
            await owned("channel writer", partial(self._outbox.pump, self._stream))
        except _GONE:
            tasks.cancel_scope.cancel()

    async def _read(self, tasks: TaskGroup) -> None:
        reader = ChunkReader(self._stream)
        try:
            while True:
                chunk = await reader.receive()
                self.received += 1
                self._take(chunk, tasks)
        except _GONE:
            pass
        except BadFrame as exc:
            log.error("channel.damaged", why=str(exc))  # noqa: TRY400 - the traceback says no more

    def _take(self, chunk: Chunk, tasks: TaskGroup) -> None:
        match chunk.kind:
            case Kind.CALL:
                self._take_call(chunk, tasks)
            case Kind.RESULT | Kind.FAILURE:
                self._take_answer(chunk)
            case Kind.CANCEL:
                self._halves.pop(chunk.call, None)
                if (scope := self._answering.get(chunk.call)) is not None:
                    scope.cancel()
            case Kind.PING:
                self._outbox.post(Kind.PONG)
            case Kind.PONG:
                pass
            case _:
                log.warning("frame.dropped", kind=chunk.kind, call=chunk.call)

    def _take_call(self, chunk: Chunk, tasks: TaskGroup) -> None:
        body = self._halves.setdefault(chunk.call, bytearray())
        body += chunk.data
        if not chunk.last:
            return
        del self._halves[chunk.call]
        if self._refusing:
            return
        scope = self._answering[chunk.call] = anyio.CancelScope()
        tasks.start_soon(self._give_answer, chunk.call, scope, bytes(body), name=f"answer {chunk.call}")

    def _take_answer(self, chunk: Chunk) -> None:
        call = self._calls.get(chunk.call)
        if call is None:  # it was cancelled
            return
        call.parts += chunk.data
        if not chunk.last:
            return
        call.result = bytes(call.parts)
        if chunk.kind == Kind.FAILURE:
            try:
                call.result = decode_failure(call.result)
            except (msgspec.MsgspecError, StopIteration, KeyError) as exc:
                call.result = PortFailed(f"a failure came that cannot be read: {type(exc).__name__}: {exc}")
        call.answered.set()

    async def _give_answer(self, number: int, scope: anyio.CancelScope, body: bytes) -> None:
        try:
            with scope:
                try:
                    kind, reply = Kind.RESULT, await owned(f"answer {number}", partial(self._answer, body))
                except Exception as exc:  # noqa: BLE001 - it is the caller's
                    kind, reply = Kind.FAILURE, encode_failure(exc)
                await self._outbox.send(kind, number, reply)
        finally:
            del self._answering[number]
            self._answer_ended.ring()
