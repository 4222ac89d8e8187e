"""The actor that knows whose each payload is. It holds references; bytes only while a group is spooled.

Its methods block, in a few threads of Ray's: a call of theirs costs half of one of an event loop.
"""

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import ray
import ray.exceptions as rx

from backends import _spool
from backends._failures import encode_failure
from backends.ray.payloads import Held, fetched, not_held, put_alone
from backends.ray.stored import Sums
from protocols.backend import Bulk
from protocols.messages import PayloadRef

THREADS = 8
"""Calls at once. What takes long is a group that is spooled, and the question for sums."""


class PayloadDirectory:
    """Owners, keys, and the objects that they stand for; an object that it forgets is freed once nobody reads it."""

    def __init__(self) -> None:
        self._held: dict[str, dict[str, Held]] = {}
        self._makers: dict[str, Any] = {}
        self._changing = threading.Lock()
        self._asking = threading.Lock()  # who asks for sums second finds them

    def meet(self, maker: str, handle: Any) -> None:
        """Know whom to ask for the checksums of what an actor put."""
        self._makers[maker] = handle

    def keep(self, payloads: Sequence[tuple[PayloadRef, Held]]) -> list[None]:
        """Hold objects."""
        with self._changing:
            for ref, held in payloads:
                self._held.setdefault(ref.owner, {})[ref.key] = held
        return [None for _ in payloads]

    def find(self, refs: Sequence[PayloadRef]) -> list[Held | None]:
        """Return where payloads lie, or nothing."""
        return [self._held.get(ref.owner, {}).get(ref.key) for ref in refs]

    def release(self, owners: Sequence[str]) -> list[None]:
        """Forget the objects of every owner that starts with one of ``owners``."""
        with self._changing:
            for name in [name for name in self._held if name.startswith(tuple(owners))]:
                del self._held[name]
        return [None for _ in owners]

    def owners(self) -> frozenset[str]:
        """Return the owners that hold something."""
        with self._changing:
            return frozenset(self._held)

    def sums(self, ref: PayloadRef) -> tuple[Sums, ...] | None:
        """Return the checksums of a payload, which its maker is asked for once; None: it, or its maker, is gone."""
        with self._asking:
            (held,) = self.find([ref])
            if held is None:
                return None
            asked = [one for one, sums in zip(held.parcels, held.sums, strict=True) if sums is None]
            try:
                told = iter(ray.get(self._makers[held.maker].sums.remote(*asked)) if asked else ())
            except rx.RayError:
                return None
            sums = tuple(next(told) if one is None else one for one in held.sums)
            with self._changing:
                if self.find([ref])[0] is held:
                    self._held[ref.owner][ref.key] = replace(held, sums=sums)
        return sums

    def spool(self, ref: PayloadRef, path: str) -> bytes:
        """Write a group's payload to a file on this node; returns the failure, or nothing."""
        try:
            anyio.run(self._spool, ref, path)
        except Exception as exc:  # noqa: BLE001 - it is the caller's
            return encode_failure(exc)
        return b""

    async def _spool(self, ref: PayloadRef, path: str) -> None:
        await _spool.spool(await self._value(ref), path)

    def unspool(self, ref: PayloadRef, path: str) -> bytes:
        """Store what such a file holds; returns the failure, or nothing."""
        try:
            held = put_alone(_spool.read(Path(path)))
        except Exception as exc:  # noqa: BLE001 - it is the caller's
            return encode_failure(exc)
        self.keep([(ref, held)])
        return b""

    async def _value(self, ref: PayloadRef) -> Bulk:
        (found,) = self.find([ref])
        if found is None:
            raise not_held(ref)
        return await fetched(found, ref, lambda: anyio.to_thread.run_sync(self.sums, ref))
