"""Ports over a wire: what crosses, taken from the port's own annotations.

``client`` makes a port out of a function that carries one call; ``Codec`` turns arguments, results and
errors of a port's methods into bytes and back. A backend with processes needs both, and so does the
proxy that proves, in one process, that nothing but messages crosses.
"""

import inspect
import typing
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

import msgspec

from protocols import errors
from protocols.errors import ConductorError, Problem

P = TypeVar("P")
Send = Callable[[str, tuple[Any, ...]], Awaitable[Any]]
"""Carries one call: method name, arguments in order; returns the result or raises."""


def port_methods(port: type) -> dict[str, Callable[..., Any]]:
    """Return the methods of a port by name, in the order in which they are declared, a base's first."""
    return {
        name: member
        for base in reversed(port.__mro__)
        for name, member in vars(base).items()
        if inspect.iscoroutinefunction(member)
    }


def client(port: type[P], send: Send) -> P:
    """Return an object whose port methods are carried by ``send``."""

    def method(name: str) -> Callable[..., Awaitable[Any]]:
        async def call(_: object, *args: Any) -> Any:
            return await send(name, args)

        return call

    namespace = {name: method(name) for name in port_methods(port)}
    return cast("P", type(f"{port.__name__}Client", (), namespace)())


class _Failure(msgspec.Struct, frozen=True, kw_only=True):
    error: tuple[str, ...]  # its class and those above it, the nearest first
    facts: dict[str, Any]


class Codec:
    """Encodes the calls of one port.

    Args:
        port: A protocol class whose method annotations are messages or built-in values.
    """

    def __init__(self, port: type) -> None:
        self._args: dict[str, msgspec.msgpack.Decoder[tuple[Any, ...]]] = {}
        self._results: dict[str, msgspec.msgpack.Decoder[Any]] = {}
        for name, member in port_methods(port).items():
            hints = typing.get_type_hints(member)
            result = hints.pop("return")
            self._args[name] = msgspec.msgpack.Decoder(tuple.__class_getitem__(tuple(hints.values()) or ((),)))
            self._results[name] = msgspec.msgpack.Decoder(result)

    def encode_args(self, args: tuple[Any, ...]) -> bytes:
        """Encode the arguments of a call; raises TypeError for what is no message."""
        return msgspec.msgpack.encode(args)

    def decode_args(self, method: str, data: bytes) -> tuple[Any, ...]:
        """Decode the arguments of a call of ``method``."""
        return self._args[method].decode(data)

    def encode_result(self, result: Any) -> bytes:
        """Encode a result; raises TypeError for what is no message."""
        return msgspec.msgpack.encode(result)

    def decode_result(self, method: str, data: bytes) -> Any:
        """Decode the result of ``method``."""
        return self._results[method].decode(data)


def encode_error(error: ConductorError) -> bytes:
    """Encode an error by its classes' names and its attributes."""
    names = tuple(known.__name__ for known in type(error).__mro__ if issubclass(known, ConductorError))
    return msgspec.msgpack.encode(_Failure(error=names, facts=vars(error)))


def decode_error(data: bytes) -> ConductorError:
    """Rebuild an error that ``encode_error`` encoded; a user's own class becomes the nearest one known here."""
    failure = msgspec.msgpack.decode(data, type=_Failure)
    found: type[ConductorError] = next(getattr(errors, name) for name in failure.error if hasattr(errors, name))
    error = found.__new__(found)
    facts = dict(failure.facts)
    if "problems" in facts:
        facts["problems"] = msgspec.convert(facts["problems"], tuple[Problem, ...])
    for name in ("workers", "others"):
        if name in facts:
            facts[name] = msgspec.convert(facts[name], tuple[str, ...])
    error.args = (facts["message"],)
    vars(error).update(facts)
    return error


def over_codec(port: type[P], implementation: P) -> P:
    """Return ``implementation`` behind its codec: every argument, result and error is encoded and decoded."""
    codec = Codec(port)

    async def send(method: str, args: tuple[Any, ...]) -> Any:
        arrived = codec.decode_args(method, codec.encode_args(args))
        try:
            result = await getattr(implementation, method)(*arrived)
        except ConductorError as exc:
            raise decode_error(encode_error(exc)) from exc
        return codec.decode_result(method, codec.encode_result(result))

    return client(port, send)
