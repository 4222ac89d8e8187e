"""The actor that knows whose each payload is. It holds references, and the bytes of what is small.

None of its methods is a coroutine: a call of such an actor costs half of one that has an event loop.
"""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import ray

from backends import _spool
from backends._failures import encode_failure
from backends.ray.payloads import Change, Held, fetched, not_held, put_alone, small_bytes
from backends.ray.together import MESSAGE_BYTES
from protocols.messages import PayloadRef

GROUPS = {"spool": 4}
"""Threads for what moves bytes, beside the one of the others, which never wait."""


class PayloadDirectory:
    """Owners, keys, and the objects that they stand for; an object that it forgets is freed once nobody reads it."""

    def __init__(self) -> None:
        self._held: dict[str, dict[str, Held]] = {}
        self._makers: dict[str, Any] = {}
        self._changing = threading.Lock()

    def change(self, changes: Sequence[Change]) -> list[None]:
        """Hold payloads, and forget those of every owner that starts with a text, in this order."""
        with self._changing:
            for change in changes:
                if isinstance(change, str):
                    for name in [name for name in self._held if name.startswith(change)]:
                        del self._held[name]
                else:
                    ref, held = change
                    self._held.setdefault(ref.owner, {})[ref.key] = held
        return [None for _ in changes]

    def find(self, refs: Sequence[PayloadRef]) -> list[Held | None]:
        """Return where payloads lie, or nothing: of the first of them, as many as one message carries."""
        found: list[Held | None] = []
        room = MESSAGE_BYTES
        for ref in refs:
            held = self._find(ref)
            room -= small_bytes(held)
            if found and room < 0:
                break
            found.append(held)
        return found

    def owners(self) -> frozenset[str]:
        """Return the owners that hold something."""
        with self._changing:
            return frozenset(self._held)

    def meet(self, maker: str, handle: Any) -> None:
        """Know whom to ask for the checksums of what an actor put."""
        self._makers[maker] = handle

    def maker(self, maker: str) -> Any:
        """Return the handle of such an actor."""
        return self._makers.get(maker)

    @ray.method(concurrency_group="spool")
    def spool(self, ref: PayloadRef, path: str) -> bytes:
        """Write a group's payload to a file on this node; returns the failure, or nothing."""
        try:
            anyio.run(_spooled, self._find(ref), ref, path)
        except Exception as exc:  # noqa: BLE001 - it is the caller's
            return encode_failure(exc)
        return b""

    @ray.method(concurrency_group="spool")
    def unspool(self, ref: PayloadRef, path: str) -> bytes:
        """Store what such a file holds; returns the failure, or nothing."""
        try:
            held = put_alone(_spool.read(Path(path)))
        except Exception as exc:  # noqa: BLE001 - it is the caller's
            return encode_failure(exc)
        self.change([(ref, held)])
        return b""

    def _find(self, ref: PayloadRef) -> Held | None:
        return self._held.get(ref.owner, {}).get(ref.key)


async def _spooled(held: Held | None, ref: PayloadRef, path: str) -> None:
    if held is None:
        raise not_held(ref)
    await _spool.spool(await fetched(held, ref), path)
