"""The actor that knows whose each payload is. It holds references; bytes only while a group is spooled."""

from backends._failures import encode_failure
from backends._spool import spool, unspool
from backends.ray.payloads import Held, fetched, not_held, put_alone
from protocols.backend import Bulk
from protocols.messages import PayloadRef


class PayloadDirectory:
    """Owners, keys, and the objects that they stand for; an object that it forgets is freed once nobody reads it."""

    def __init__(self) -> None:
        self._held: dict[str, dict[str, Held]] = {}

    async def keep(self, ref: PayloadRef, held: Held) -> None:
        """Hold objects."""
        self._held.setdefault(ref.owner, {})[ref.key] = held

    async def find(self, ref: PayloadRef) -> Held | None:
        """Return where a payload lies, or nothing."""
        return self._held.get(ref.owner, {}).get(ref.key)

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
        await self.keep(ref, put_alone(group))
        return b""

    async def _value(self, ref: PayloadRef) -> Bulk:
        found = await self.find(ref)
        if found is None:
            raise not_held(ref)
        return await fetched(found, ref)
