"""Taking from a stream whatever lies ready in it."""

from typing import TypeVar

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream

T = TypeVar("T")


def at_hand(stream: MemoryObjectReceiveStream[T]) -> list[T]:
    """Return what can be received without waiting.

    To receive each item by itself costs every one of them a turn of the loop; what was sent in one turn is worked on
    in one turn so, and shares a commit of the record.
    """
    items: list[T] = []
    try:
        while True:
            items.append(stream.receive_nowait())
    except (anyio.WouldBlock, anyio.EndOfStream):
        return items
