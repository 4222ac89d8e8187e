"""What the controller answers to the questions of one worker."""

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
from anyio.abc import TaskGroup

from backends._failures import encode_failure
from backends.ray.mailbox import reply_size
from backends.ray.messages import ASKED, Asked, Question, Reply, as_bytes
from backends.ray.together import Together
from protocols.aio import owned
from protocols.errors import ConductorError, WorkerLost
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
        self._replies: Together[tuple[int, Reply], None] = Together(self._send, "a worker", reply_size)
        self._ports = {asked: (port, Codec(ASKED[asked])) for asked, port in ports.items()}
        self._tasks = tasks
        self._asking: dict[int, anyio.CancelScope] = {}

    def give(self, question: Question) -> None:
        """Begin to answer a question, or give up the one that is taken back."""
        number, asked, method, args = question
        if method is None:
            if (asking := self._asking.get(number)) is not None:
                asking.cancel()
            return
        self._asking[number] = anyio.CancelScope()
        self._tasks.start_soon(self._answer, number, asked, method, args, name=f"answer {number}")

    async def _answer(self, number: int, asked: Asked, method: str, args: bytes) -> None:
        try:
            with self._asking[number]:
                await self._reply(number, await self._ask(asked, method, args))
        finally:
            del self._asking[number]

    def _send(self, replies: list[tuple[int, Reply]]) -> Any:
        return self._actor.replies.remote(as_bytes(replies))

    async def _reply(self, number: int, reply: Reply) -> None:
        with suppress(WorkerLost):  # which is told elsewhere
            try:
                await self._replies.ask((number, reply))
            except WorkerLost:
                raise
            except ConductorError as exc:  # there was no room for it, maybe: whoever asked must not wait for ever
                await self._replies.ask((number, (None, encode_failure(exc))))

    async def _ask(self, asked: Asked, method: str, args: bytes) -> Reply:
        try:
            port, codec = self._ports[asked]
            ask = partial(getattr(port, method), *codec.decode_args(method, args))
            return codec.encode_result(await owned(method, ask)), None
        except Exception as exc:  # noqa: BLE001 - it is the worker's
            return None, encode_failure(exc)
