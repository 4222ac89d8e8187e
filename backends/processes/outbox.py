"""Chunks on their way out."""

from collections import deque

import anyio
from anyio.abc import ByteSendStream

from backends.processes.frames import Kind, cut
from protocols.aio import Doorbell

_WAITING = 4


class Outbox:
    """A short queue: whoever sends waits while the other end does not read.

    Chunks of messages that are sent at the same time take turns. What is added without waiting is small, and there is
    no more of it than there are calls.
    """

    def __init__(self) -> None:
        self._chunks: deque[tuple[bytes, bool]] = deque()
        self._slots = anyio.Semaphore(_WAITING, fast_acquire=True)
        self._bell = Doorbell()

    async def send(self, kind: Kind, call: int, body: bytes) -> None:
        """Queue a message.

        Cancelling: its first chunks may be on their way; ``CANCEL`` says that there will be no more.
        """
        for chunk in cut(kind, call, body):
            await self._slots.acquire()
            self._chunks.append((chunk, True))
            self._bell.ring()

    def post(self, kind: Kind, call: int = 0) -> None:
        """Queue a message without a body, behind what is queued."""
        (chunk,) = cut(kind, call, b"")
        self._chunks.append((chunk, False))
        self._bell.ring()

    async def pump(self, stream: ByteSendStream) -> None:
        """Send what is queued, for ever. Cancelling: the stream may end within a chunk, and is good for nothing."""
        while True:
            while not self._chunks:
                await self._bell.wait()
            chunk, waited = self._chunks.popleft()
            await stream.send(chunk)
            if waited:
                self._slots.release()
