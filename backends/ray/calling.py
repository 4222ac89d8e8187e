"""Calls of the controller to one worker.

One by itself is a call of Ray, which is the shortest way there and back. Those that are made while it goes on go
together, and their answers come with the worker's mail: in a busy run a message carries dozens of them. An abort never
waits for others.
"""

import itertools
from functools import partial
from typing import Any

import anyio
import ray.exceptions as rx

from backends.ray.calls import carried
from backends.ray.failures import translated
from backends.ray.messages import TAKEN_BACK, Call, Reply, as_bytes, reply_of
from backends.ray.together import Together


class Calls:
    """Makes calls, and hands out the answers that come by mail.

    Args:
        actor: Handle of the worker's ``WorkloadActor``.
        name: The worker's.
    """

    def __init__(self, actor: Any, name: str) -> None:
        self._actor = actor
        self._name = name
        self._numbers = itertools.count()
        self._alone = 0  # calls that went by themselves, and go on
        self._together: Together[Call, None] = Together(self._send, name, lambda call: len(call[2]))
        self._waiting: dict[int, _Waiting] = {}

    async def call(self, method: str, args: bytes) -> Reply:
        """Return the answer to one call. Before this first yields it is on its way, or waits in line.

        Cancelling: the call is withdrawn, and over on return; see ``carried``.

        Raises:
            ConductorError: What an error of Ray means.
        """
        number = next(self._numbers)
        call, abort = (number, method, args), partial(self._actor.withdraw.remote, number)
        if method == "abort" or not (self._alone or self._together.busy):
            self._alone += 1
            try:
                return reply_of(await carried(self._sent(call), self._name, abort))
            finally:
                self._alone -= 1
        waiting = self._waiting[number] = _Waiting()
        try:
            return await carried(self._by_mail(call, waiting), self._name, abort)
        finally:
            del self._waiting[number]

    def take(self, number: int, reply: Reply) -> None:
        """Take an answer; one that nobody waits for any more is dropped."""
        if (waiting := self._waiting.get(number)) is not None:
            waiting.reply = reply
            waiting.answered.set()

    def _send(self, calls: list[Call]) -> Any:
        return self._actor.calls.remote(as_bytes(calls))

    def _sent(self, call: Call) -> Any:
        try:
            return self._actor.call.remote(as_bytes(call))
        except rx.RayError as exc:
            raise translated(self._name, exc) from exc

    async def _by_mail(self, call: Call, waiting: "_Waiting") -> Reply:
        await self._together.ask(call)
        await waiting.answered.wait()
        return waiting.reply


class _Waiting:
    """A call whose answer comes by mail."""

    def __init__(self) -> None:
        self.answered = anyio.Event()
        self.reply = TAKEN_BACK
