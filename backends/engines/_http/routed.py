"""Servers behind a router: requests go through it, and all else to each server itself.

A router sends what it is asked to one server of its own choice, or does not know it at all: an abort, a pause or an
update that went through it would reach one of them, and be answered as if it had reached all.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from backends.engines._http.cargo import Cargo
from backends.engines._http.dialect import Answered, Dialect, Scored, ServerState
from backends.engines._http.together import together
from backends.engines._http.window import Load
from protocols.inference import GenerateRequest, SampleRequest

T = TypeVar("T")


class RoutedDialect:
    """Speaks to servers of one interface, as if they were one.

    They serve the same weights, or none that anybody vouches for: their common label is that which all bear.

    Args:
        router: Speaks to the router.
        servers: To each server behind it, all that there are.
    """

    def __init__(self, router: Dialect, servers: Sequence[Dialect]) -> None:
        self._router = router
        self._servers = servers

    async def healthy(self) -> None:
        """Ask the router and all servers for their health."""
        await together("health", [one.healthy for one in (self._router, *self._servers)])

    async def context(self) -> int:
        """Return the smallest."""
        return min(await self._each("context", lambda one: one.context))

    async def state(self) -> ServerState:
        """Ask all; different labels are together one that nobody was given."""
        states = await self._each("state", lambda one: one.state)
        labels = sorted({state.label for state in states})
        return ServerState(" and ".join(labels), all(state.paused for state in states))

    async def load(self) -> Load:
        """Add up what runs and waits on each; of their caches the fullest counts."""
        found = await self._each("load", lambda one: one.load)
        running, waiting = sum(one.running for one in found), sum(one.waiting for one in found)
        return Load(running, waiting, max(one.cache for one in found))

    def refusal(self, request: GenerateRequest) -> str | None:
        """Say what each would."""
        return self._router.refusal(request)

    async def generate(
        self, sample: SampleRequest, request: GenerateRequest, salt: str, undo: Callable[[], Awaitable[None]]
    ) -> Answered:
        """Generate on the server that the router chooses."""
        return await self._router.generate(sample, request, salt, undo)

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Ask all servers: nobody knows which of them has a request."""
        await self._each("abort", lambda one: partial(one.abort, request_ids))

    async def pause(self) -> None:
        """Pause all."""
        await self._each("pause", lambda one: one.pause)

    async def resume(self) -> None:
        """Resume all."""
        await self._each("resume", lambda one: one.resume)

    async def publish(self, cargo: Cargo, label: str, loading: str) -> None:
        """Let all load the same weights at once."""
        await self._each("publish", lambda one: partial(one.publish, cargo, label, loading))

    async def score(self, token_ids: Sequence[int]) -> Sequence[Scored]:
        """Ask all."""
        found = await self._each("score", lambda one: partial(one.score, token_ids))
        return [one for scored in found for one in scored]

    async def _each(self, what: str, call: Callable[[Dialect], Callable[[], Awaitable[T]]]) -> list[T]:
        return await together(what, [call(one) for one in self._servers])


_: type[Dialect] = RoutedDialect
