"""A payload store in memory, and a count of what crossed it."""

from anyio.lowlevel import checkpoint

from backends._spool import spool, unspool
from protocols.backend import Bulk, PayloadPort
from protocols.errors import WorkerLost
from protocols.messages import PayloadRef


class ScriptedPayloads:
    """Keeps the very objects that were put.

    Attributes:
        held: What is stored now, by owner and key.
        released: The arguments of every ``release``, in order.
    """

    def __init__(self) -> None:
        self.held: dict[tuple[str, str], Bulk] = {}
        self.released: list[str] = []

    async def put(self, ref: PayloadRef, value: Bulk) -> None:
        """Store; the last of two puts wins."""
        await checkpoint()
        self.held[ref.owner, ref.key] = value

    async def get(self, ref: PayloadRef) -> Bulk:
        """Return the very object; WorkerLost where it is not."""
        await checkpoint()
        try:
            return self.held[ref.owner, ref.key]
        except KeyError:
            raise WorkerLost(worker="payloads", cause=f"no payload {ref.owner}{ref.key}") from None

    async def release(self, owner: str) -> None:
        """Forget by prefix of the owner."""
        await checkpoint()
        self.released.append(owner)
        for held in [held for held in self.held if held[0].startswith(owner)]:
            del self.held[held]

    async def owners(self) -> frozenset[str]:
        """Return who holds something."""
        await checkpoint()
        return frozenset(owner for owner, _ in self.held)

    async def spool(self, ref: PayloadRef, path: str) -> None:
        """Write a group's payload to a file."""
        await spool(await self.get(ref), path)

    async def unspool(self, ref: PayloadRef, path: str) -> None:
        """Read it."""
        await self.put(ref, await unspool(path))


_: type[PayloadPort] = ScriptedPayloads
