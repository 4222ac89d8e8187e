"""HTTP/1.1 as an engine's server needs it: JSON in, JSON or server-sent events out, and a client's leaving is noticed.

h11 reads and writes the protocol; what is here moves bytes and owns the tasks.
"""

import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

import anyio
import h11
import msgspec
import structlog
from anyio.abc import Listener, SocketAttribute, SocketStream

from protocols.aio import owned
from protocols.errors import ConductorError

log = structlog.get_logger(__name__)
T = TypeVar("T")

LARGEST_BODY = 64 << 20
_READ = 64 << 10
_GONE = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError)
_RESET = struct.pack("ii", 1, 0)  # linger for no time: close() then sends RST


class Refused(Exception):
    """A request that is answered with an error.

    Args:
        status: Of the answer.
        message: For people.
    """

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class ConnectionReset(Exception):
    """Answer with nothing: reset the connection."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a client asks.

    Attributes:
        method: ``GET`` or ``POST``.
        path: Without the query.
        query: The last value of each name.
        body: As it came.
    """

    method: str
    path: str
    query: dict[str, str]
    body: bytes

    def read(self, schema: type[T]) -> T:
        """Decode the body; an empty one counts as an empty object, and fields that ``schema`` lacks are ignored.

        Raises:
            Refused: It does not fit.
        """
        try:
            return msgspec.json.decode(self.body or b"{}", type=schema)
        except msgspec.MsgspecError as exc:
            raise Refused(HTTPStatus.BAD_REQUEST, str(exc)) from exc


Send = Callable[[bytes], Awaitable[None]]
"""Sends the data of one server-sent event."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What is sent back: a body, or events as they come.

    Attributes:
        body: Sent whole where there is no ``stream``.
        stream: Sends events until it returns.
    """

    status: HTTPStatus = HTTPStatus.OK
    kind: str = "application/json"
    body: bytes = b""
    stream: Callable[[Send], Awaitable[None]] | None = None


def as_json(value: Any, status: HTTPStatus = HTTPStatus.OK) -> Answer:
    """Return an answer of JSON."""
    return Answer(status=status, body=msgspec.json.encode(value))


Handler = Callable[[Request], Awaitable[Answer]]
"""Raises ``Refused`` or a ``ConductorError`` to refuse, ``ConnectionReset`` to hang up."""


async def serve(listener: Listener[SocketStream], handler: Handler, failed: Callable[[Exception], Answer]) -> None:
    """Answer clients until cancelled, each connection in a task of its own.

    Args:
        listener: Where they come in.
        handler: Answers one request; cancelled when its client leaves.
        failed: Turns what a handler raised into an answer.
    """

    async def connected(stream: SocketStream) -> None:
        async with stream:
            with suppress(*_GONE):
                await _Connection(stream, handler, failed).converse()

    await listener.serve(lambda stream: owned("connection", connected, stream))


class _Connection:
    def __init__(self, stream: SocketStream, handler: Handler, failed: Callable[[Exception], Answer]) -> None:
        self._stream = stream
        self._handler = handler
        self._failed = failed
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)

    async def converse(self) -> None:
        """Answer request after request, until one side closes."""
        while True:
            try:
                request = await self._request()
            except h11.RemoteProtocolError as exc:
                if self._http.our_state is h11.IDLE:
                    await self._send(self._failed(Refused(HTTPStatus.BAD_REQUEST, str(exc))))
                return
            if request is None or not await self._answer(request):
                return
            if self._http.our_state is h11.MUST_CLOSE:
                return
            self._http.start_next_cycle()

    async def _request(self) -> Request | None:
        head: h11.Request | None = None
        body = bytearray()
        while True:
            event = self._http.next_event()
            match event:
                case h11.NEED_DATA:
                    await self._more()
                case h11.Request():
                    head = event
                    if self._http.they_are_waiting_for_100_continue:
                        await self._write(h11.InformationalResponse(status_code=100, headers=[]))
                case h11.Data():
                    body += event.data
                    if len(body) > LARGEST_BODY:
                        raise h11.RemoteProtocolError("the body is too large")
                case h11.EndOfMessage():
                    assert head is not None
                    url = urlsplit(head.target.decode())
                    query = dict(parse_qsl(url.query))
                    return Request(method=head.method.decode(), path=url.path, query=query, body=bytes(body))
                case _:
                    return None

    async def _more(self) -> None:
        try:
            self._http.receive_data(await self._stream.receive(_READ))
        except anyio.EndOfStream:
            self._http.receive_data(b"")

    async def _answer(self, request: Request) -> bool:
        """Answer one request; return whether there may be another."""
        finished = False
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(owned, "client watch", self._watch, tasks.cancel_scope, name="client watch")
            try:
                await self._send(await self._handled(request))
                finished = True
            except ConnectionReset:
                reset(self._stream)
            except _GONE:
                pass
            tasks.cancel_scope.cancel()
        return finished

    async def _handled(self, request: Request) -> Answer:
        try:
            return await self._handler(request)
        except (Refused, ConductorError) as exc:
            return self._failed(exc)
        except ConnectionReset:
            raise
        except Exception as exc:
            log.exception("request.failed", path=request.path)
            return self._failed(exc)

    async def _watch(self, answering: anyio.CancelScope) -> None:
        """Cancel the answer when the client leaves; what it sends ahead is kept for later."""
        try:
            while True:
                self._http.receive_data(await self._stream.receive(_READ))
        except _GONE:
            answering.cancel()

    async def _send(self, answer: Answer) -> None:
        if answer.stream is None:
            headers = [("content-type", answer.kind), ("content-length", str(len(answer.body)))]
            head = h11.Response(status_code=answer.status, headers=headers)
            await self._write(head, h11.Data(data=answer.body), h11.EndOfMessage())
            return
        headers = [("content-type", "text/event-stream"), ("cache-control", "no-cache")]
        await self._write(h11.Response(status_code=answer.status, headers=[*headers, ("transfer-encoding", "chunked")]))
        await answer.stream(self._send_event)
        await self._write(h11.EndOfMessage())

    async def _send_event(self, data: bytes) -> None:
        await self._write(h11.Data(data=b"data: " + data + b"\n\n"))

    async def _write(self, *events: h11.Event) -> None:
        await self._stream.send(b"".join(self._http.send(event) or b"" for event in events))


def reset(stream: SocketStream) -> None:
    """Let the connection end in a reset when it is closed."""
    stream.extra(SocketAttribute.raw_socket).setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)  # noqa: S610 - a socket, no query
