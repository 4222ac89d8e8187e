"""Calls of ports over a channel: what a request is, who answers it, and a port that sends its calls there."""

from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgspec
from anyio.lowlevel import checkpoint

from backends.processes.channel import Channel, ChannelEnded
from protocols.backend import WorkloadSpec
from protocols.errors import InvariantError, WorkerLost
from protocols.messages import Message
from protocols.wire import Codec, client

P = TypeVar("P")


class Request(Message, frozen=True, kw_only=True):
    """One call: which port of the other end, which method, and its arguments as the port's codec has them."""

    port: str
    method: str
    args: msgspec.Raw


class LaunchOrder(Message, frozen=True, kw_only=True):
    """What a new worker is to be.

    Attributes:
        spec: What to open.
        payloads: Folder of the payload store.
        reserve_bytes: What must stay free where that lies.
        inference: Whether the controller answers for the engines.
        roles: Whether it answers for the other workers.
    """

    spec: WorkloadSpec
    payloads: str
    reserve_bytes: int
    inference: bool
    roles: bool = False


class HostPort(Protocol):
    """A worker process, before it is a workload."""

    async def open(self, order: LaunchOrder) -> None:
        """Open the workload; once."""
        ...


class NoticePort(Protocol):
    """The controller's side of a worker process."""

    async def leaving(self) -> None:
        """Take note that the place of the worker is about to be taken away."""
        ...


@dataclass(frozen=True)
class _Served:
    codec: Codec
    implementation: Any


class Desk:
    """Answers the calls that come over a channel, each with the port that it names."""

    def __init__(self) -> None:
        self._ports: dict[str, _Served] = {}

    def serve(self, name: str, port: type[P], implementation: P) -> None:
        """Answer calls of the port ``name`` from now on."""
        self._ports[name] = _Served(Codec(port), implementation)

    async def answer(self, body: bytes) -> bytes:
        """Answer one call.

        Raises:
            InvariantError: There is no such port or method, or the arguments are not what it takes.
            Exception: What the port raised.
        """
        await checkpoint()
        try:
            request = msgspec.msgpack.decode(body, type=Request)
            served = self._ports[request.port]
            args = served.codec.decode_args(request.method, bytes(request.args))
        except (msgspec.MsgspecError, KeyError) as exc:
            raise InvariantError(f"a call came that nobody can answer: {type(exc).__name__}: {exc}") from exc
        result = await getattr(served.implementation, request.method)(*args)
        return served.codec.encode_result(result)


async def call_port(channel: Channel, name: str, codec: Codec, method: str, args: tuple[Any, ...]) -> Any:
    """Call a method of the port ``name`` of the other end.

    Raises:
        ChannelEnded: The other end is gone.
        InvariantError: Its answer is not what the port promises.
        ConductorError: What the port raised.
    """
    request = Request(port=name, method=method, args=msgspec.Raw(codec.encode_args(args)))
    reply = await channel.call(msgspec.msgpack.encode(request))
    try:
        return codec.decode_result(method, reply)
    except msgspec.MsgspecError as exc:
        raise InvariantError(f"the answer to {name}.{method} cannot be read: {exc}") from exc


def of_controller(channel: Channel, name: str, port: type[P]) -> P:
    """Return the port ``name`` that the controller, at the other end, serves to a worker."""
    codec = Codec(port)

    async def send(method: str, args: tuple[Any, ...]) -> Any:
        try:
            return await call_port(channel, name, codec, method, args)
        except ChannelEnded as exc:
            raise WorkerLost(worker="controller", cause="the channel to it ended") from exc

    return client(port, send)
