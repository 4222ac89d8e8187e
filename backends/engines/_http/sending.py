"""Requests wait here for their turn while their server has enough to do."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress

import anyio

from backends.engines._http.calls import Call
from backends.engines._http.connection import ServerRefused
from backends.engines._http.dialect import Dialect
from backends.engines._http.window import Window
from protocols.errors import ConductorError

LOOK_EVERY_S = 1.0
"""How often a server that works for us is asked what it has queued."""


class Sending:
    """Lets so many requests at once through to a server, first come, first served, as its window says.

    It alone decides how many a server has; what it holds counts as the engine's, for who shares work out.

    Args:
        dialect: The server's interface.
        ceiling: The most that the server is ever given.
        steady: Whether the server works as usual: what it queues while it stands still says nothing.

    Attributes:
        held: How many wait.
    """

    def __init__(self, dialect: Dialect, ceiling: int, steady: Callable[[], bool]) -> None:
        self.held = 0
        self._dialect = dialect
        self._steady = steady
        self._window = Window(ceiling)
        self._turns = anyio.CapacityLimiter(ceiling)

    @property
    def allowed(self) -> int:
        """How many requests the server may have."""
        return self._window.size

    @asynccontextmanager
    async def turn(self, call: Call) -> AsyncGenerator[bool]:
        """Wait until one more request may be sent; gives False where the call was withdrawn meanwhile."""
        waiting = anyio.CancelScope()
        call.held[waiting] = None
        self.held += 1
        try:
            with waiting:
                await self._turns.acquire()
        finally:
            self.held -= 1
            del call.held[waiting]
        if waiting.cancelled_caught:
            yield False
            return
        try:
            yield True
        finally:
            self._turns.release()

    async def watch(self) -> None:
        """Follow what the server reports, until cancelled; one that does not answer changes nothing."""
        while True:
            await anyio.sleep(LOOK_EVERY_S)
            if self._turns.borrowed_tokens and self._steady():
                with suppress(ServerRefused, ConductorError):
                    load = await self._dialect.load()
                    if self._steady():
                        self._window.observe(load, int(self._turns.borrowed_tokens))
                        self._turns.total_tokens = self._window.size
