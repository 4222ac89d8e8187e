"""Two connected byte streams in memory, with a small buffer, for channels under virtual time."""

import anyio
from anyio.abc import ByteStream
from anyio.lowlevel import checkpoint

from protocols.aio import Doorbell

CAPACITY = 2**16


class _Pipe:
    def __init__(self) -> None:
        self.data = bytearray()
        self.closed = False
        self.bell = Doorbell()


class PipeEnd(ByteStream):
    """One end of a pair.

    Attributes:
        reading: Whether ``receive`` gives anything; while it does not, the other end's ``send`` waits.
    """

    def __init__(self, inward: _Pipe, outward: _Pipe) -> None:
        self._inward = inward
        self._outward = outward
        self.reading = True

    def read_on(self) -> None:
        """Read from now on."""
        self.reading = True
        self._inward.bell.ring()

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Return what there is, at least a byte."""
        await checkpoint()
        while not self.reading or not self._inward.data:
            if self._inward.closed:
                raise anyio.EndOfStream
            await self._inward.bell.wait()
        data = bytes(self._inward.data[:max_bytes])
        del self._inward.data[:max_bytes]
        self._inward.bell.ring()
        return data

    async def send(self, item: bytes) -> None:
        """Send all of it, as far as the buffer allows."""
        await checkpoint()
        view = memoryview(item)
        while view:
            if self._outward.closed:
                raise anyio.BrokenResourceError
            room = CAPACITY - len(self._outward.data)
            self._outward.data += view[:room]
            view = view[room:]
            self._outward.bell.ring()
            if view:
                await self._outward.bell.wait()

    async def send_eof(self) -> None:
        """Close this direction."""
        self._outward.closed = True
        self._outward.bell.ring()
        await checkpoint()

    async def aclose(self) -> None:
        """Close both directions."""
        for pipe in (self._inward, self._outward):
            pipe.closed = True
            pipe.bell.ring()
        await checkpoint()


def pipe_pair() -> tuple[PipeEnd, PipeEnd]:
    """Return two ends."""
    there, back = _Pipe(), _Pipe()
    return PipeEnd(there, back), PipeEnd(back, there)
