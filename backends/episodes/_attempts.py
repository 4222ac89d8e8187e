"""Attempts that run, and prefixes that were aborted, so that an abort may come before, during and after."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from protocols.errors import Aborted, InvariantError

T = TypeVar("T")

_REMEMBERED = 4096  # aborted prefixes; the oldest is forgotten first


class _Attempt:
    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.ended = anyio.Event()


class Attempts:
    """Keeps which attempts run, by prefix, and ends them by prefix."""

    def __init__(self) -> None:
        self._running: dict[str, _Attempt] = {}
        self._aborted: dict[str, None] = {}

    async def run(self, prefix: str, play: Callable[[], Awaitable[T]]) -> T:
        """Play an attempt, which an abort cuts.

        Raises:
            Aborted: Its prefix was aborted, before or meanwhile, even if it was played to its end.
            InvariantError: The same attempt runs already.
        """
        self._refuse_aborted(prefix)
        if prefix in self._running:
            raise InvariantError(f"attempt {prefix} runs already")
        mine = self._running[prefix] = _Attempt()
        try:
            with mine.scope:
                result = await play()
                if not mine.scope.cancel_called:
                    return result
            raise Aborted(prefix=prefix)
        finally:
            del self._running[prefix]
            mine.ended.set()

    def _refuse_aborted(self, prefix: str) -> None:
        if any(prefix[:end] in self._aborted for end in range(len(prefix) + 1)):
            raise Aborted(prefix=prefix)

    def remember(self, prefix: str) -> None:
        """Refuse attempts under ``prefix`` from now on."""
        self._aborted.pop(prefix, None)
        self._aborted[prefix] = None
        while len(self._aborted) > _REMEMBERED:
            del self._aborted[next(iter(self._aborted))]

    def cancel(self, prefix: str) -> None:
        """Cut the attempts that run under ``prefix``."""
        for attempt in self._under(prefix):
            attempt.scope.cancel()

    async def ended(self, prefix: str) -> None:
        """Wait until none runs under ``prefix``."""
        for attempt in self._under(prefix):
            await attempt.ended.wait()

    def _under(self, prefix: str) -> list[_Attempt]:
        return [attempt for name, attempt in self._running.items() if name.startswith(prefix)]
