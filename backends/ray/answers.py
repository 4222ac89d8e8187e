"""What the controller answers to the questions of one worker."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import anyio
from anyio.abc import TaskGroup

from backends._failures import encode_failure
from backends.ray.messages import ASKED, Asked, Question, Reply
from protocols.aio import owned
from protocols.wire import Codec


class Answers:
    """Asks whom a worker asks, and sends what is said; a task for each question.

    Args:
        actor: Handle of the worker's actor.
        ports: Those that can be asked.
        tasks: Owns the tasks.
    """

    def __init__(self, actor: Any, ports: Mapping[Asked, Any], tasks: TaskGroup) -> None:
        self._actor = actor
        self._ports = {asked: (port, Codec(ASKED[asked])) for asked, port in ports.items()}
        self._tasks = tasks
        self._asking: dict[int, anyio.CancelScope] = {}

    def give(self, question: Question) -> None:
        """Begin to answer a question, or give up the one that is taken back."""
        if question.method is None:
            if (asking := self._asking.get(question.number)) is not None:
                asking.cancel()
            return
        scope = self._asking[question.number] = anyio.CancelScope()
        self._tasks.start_soon(self._answer, question, question.method, scope, name=f"answer {question.number}")

    async def _answer(self, question: Question, method: str, scope: anyio.CancelScope) -> None:
        try:
            with scope:
                reply = await self._ask(question.asked, method, question.args)
                self._actor.reply.remote(question.number, reply)
        finally:
            del self._asking[question.number]

    async def _ask(self, asked: Asked, method: str, args: bytes) -> Reply:
        try:
            port, codec = self._ports[asked]
            ask = partial(getattr(port, method), *codec.decode_args(method, args))
            return codec.encode_result(await owned(method, ask)), None
        except Exception as exc:  # noqa: BLE001 - it is the worker's
            return None, encode_failure(exc)
