"""The actor that knows whose each payload is. It holds references; bytes only while a group is spooled."""

from typing import Any

import ray

from backends._failures import encode_failure
from backends._spool import spool, unspool
from backends.ray.payloads import fetched, not_held
from backends.ray.stored import Stored
from protocols.backend import Bulk
from protocols.messages import PayloadRef


class PayloadDirectory:
    """Owners, keys, and the objects that they stand for; an object that it forgets is freed once nobody reads it."""

    def __init__(self) -> None:
        self._held: dict[str, dict[str, Any]] = {}

    async def keep(self, ref: PayloadRef, held: list[Any]) -> None:
        """Hold an object; it comes in a list, for else Ray would hand over what it holds."""
        self._held.setdefault(ref.owner, {})[ref.key] = held[0]

    async def find(self, ref: PayloadRef) -> list[Any]:
        """Return the object, or nothing."""
        held = self._held.get(ref.owner, {}).get(ref.key)
        return [] if held is None else [held]

    async def release(self, owner: str) -> None:
        """Forget the objects of every owner that starts with ``owner``."""
        for name in [name for name in self._held if name.startswith(owner)]:
            del self._held[name]

    async def owners(self) -> frozenset[str]:
        """Return the owners that hold something."""
        return frozenset(self._held)

    async def spool(self, ref: PayloadRef, path: str) -> bytes:
        """Write a group's payload to a file on this node; returns the failure, or nothing."""
        try:
            await spool(await self._value(ref), path)
        except Exception as exc:  # noqa: BLE001 - it is the caller's
            return encode_failure(exc)
        return b""

    async def unspool(self, ref: PayloadRef, path: str) -> bytes:
        """Store what such a file holds; returns the failure, or nothing."""
        try:
            group = await unspool(path)
        except Exception as exc:  # noqa: BLE001 - it is the caller's
            return encode_failure(exc)
        await self.keep(ref, [ray.put(Stored.of(group))])
        return b""

    async def _value(self, ref: PayloadRef) -> Bulk:
        found = await self.find(ref)
        if not found:
            raise not_held(ref)
        value, _ = await fetched(found[0], ref)
        return value
