"""What the controller answers to the questions of one worker."""

from functools import partial
from typing import Any

import anyio
from anyio.abc import TaskGroup

from backends._failures import encode_failure
from backends.ray.messages import Question, Reply
from protocols.aio import owned
from protocols.inference import InferenceControllerPort
from protocols.wire import Codec


class Answers:
    """Asks the inference controller, and sends what it says; a task for each question.

    Args:
        actor: Handle of the worker's actor.
        inference: The controller of the engines.
        tasks: Owns the tasks.
    """

    def __init__(self, actor: Any, inference: InferenceControllerPort | None, tasks: TaskGroup) -> None:
        self._actor = actor
        self._inference = inference
        self._tasks = tasks
        self._codec = Codec(InferenceControllerPort)
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
                reply = await self._ask(method, question.args)
                self._actor.reply.remote(question.number, reply)
        finally:
            del self._asking[question.number]

    async def _ask(self, method: str, args: bytes) -> Reply:
        try:
            ask = partial(getattr(self._inference, method), *self._codec.decode_args(method, args))
            return Reply(result=self._codec.encode_result(await owned(method, ask)))
        except Exception as exc:  # noqa: BLE001 - it is the worker's
            return Reply(failure=encode_failure(exc))
