"""Messages in a store: their bytes, and the name of the class that reads them."""

import importlib
from typing import Any, cast

import msgspec

from protocols.messages import Message


def encoded(message: Message) -> tuple[str, bytes]:
    """Return ``module:Class`` and the bytes."""
    kind = type(message)
    return f"{kind.__module__}:{kind.__qualname__}", msgspec.msgpack.encode(message)


def decoded(name: str, body: bytes | memoryview) -> Message:
    """Return the message.

    Raises:
        ValueError: There is no such class here, or the bytes are none of its messages.
    """
    module, _, attribute = name.partition(":")
    try:
        kind: Any = importlib.import_module(module)
        for part in attribute.split("."):
            kind = getattr(kind, part)
        return cast("Message", msgspec.msgpack.decode(body, type=kind))
    except (ImportError, AttributeError, msgspec.MsgspecError) as exc:
        raise ValueError(f"it is no {name} here: {exc}") from exc
