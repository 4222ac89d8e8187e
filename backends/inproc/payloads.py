"""The payload store of one process: a dictionary."""

from dataclasses import dataclass

import msgspec
from anyio.lowlevel import checkpoint

from backends._spool import spool, unspool
from protocols.backend import Bulk, PayloadPort
from protocols.errors import WorkerLost
from protocols.messages import Message, PayloadRef


@dataclass(frozen=True, kw_only=True)
class _Encoded:
    """A message as it would lie in another process."""

    type: type[Message]
    data: bytes


class InprocPayloads:
    """Keeps payloads where they are: ``get`` gives the very object that was ``put``.

    Args:
        encode_messages: Keep messages encoded and decode them at each ``get``, as a store in another
            process would. Mappings of arrays are bulk and stay as they are.
    """

    def __init__(self, *, encode_messages: bool = False) -> None:
        self._encode_messages = encode_messages
        self._held: dict[str, dict[str, Bulk | _Encoded]] = {}

    async def put(self, ref: PayloadRef, value: Bulk) -> None:
        """Store ``value``; see ``PayloadPort.put``. There is always room."""
        await checkpoint()
        kept = value
        if self._encode_messages and isinstance(value, Message):
            kept = _Encoded(type=type(value), data=msgspec.msgpack.encode(value))
        self._held.setdefault(ref.owner, {})[ref.key] = kept

    async def get(self, ref: PayloadRef) -> Bulk:
        """Return what was put; see ``PayloadPort.get``."""
        await checkpoint()
        kept = self._held.get(ref.owner, {}).get(ref.key)
        if kept is None:
            raise WorkerLost(worker="payload store", cause=f"it holds no {ref.key!r} of {ref.owner!r}")
        if isinstance(kept, _Encoded):
            return msgspec.msgpack.decode(kept.data, type=kept.type)
        return kept

    async def release(self, owner: str) -> None:
        """Forget the payloads of every owner that starts with ``owner``; see ``PayloadPort.release``."""
        for name in [name for name in self._held if name.startswith(owner)]:
            del self._held[name]
        await checkpoint()

    async def owners(self) -> frozenset[str]:
        """Return the owners that hold something."""
        await checkpoint()
        return frozenset(self._held)

    async def spool(self, ref: PayloadRef, path: str) -> None:
        """Write a group's payload to a file; see ``PayloadPort.spool``."""
        await spool(await self.get(ref), path)

    async def unspool(self, ref: PayloadRef, path: str) -> None:
        """Store what such a file holds; see ``PayloadPort.unspool``."""
        await self.put(ref, await unspool(path))


_: type[PayloadPort] = InprocPayloads
