"""Messages that are sent together: to Ray one costs as much as thirty in one.

The first of a tick waits for the others of that tick, and what comes while a message is under way waits until it has
arrived. So there are few where there is much to say, and none waits for longer than a way there and back.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

import anyio
import ray.exceptions as rx

from backends.ray.failures import translated
from protocols.aio import clock

Q = TypeVar("Q")
A = TypeVar("A")


class Together(Generic[Q, A]):
    """Asks somebody who answers all questions of a message at once.

    Args:
        send: Submits questions; its reference holds an answer for each, in their order.
        name: Whoever is asked.
    """

    def __init__(self, send: Callable[[list[Q]], Any], name: str) -> None:
        self._send = send
        self._name = name
        self._next: _Message[Q, A] | None = None
        self._under_way = False

    @property
    def busy(self) -> bool:
        """Whether a question would wait for those before it."""
        return self._under_way or self._next is not None

    async def ask(self, question: Q) -> A:
        """Return the answer. It is asked whatever becomes of the caller.

        Raises:
            ConductorError: What an error of Ray means.
        """
        message = self._next
        if message is None:
            message = self._next = _Message()
            if not self._under_way:
                clock().call_soon(self._submit)
        message.questions.append(question)
        index = len(message.questions) - 1
        await message.arrived.wait()
        if message.failure is not None:
            raise translated(self._name, message.failure) from message.failure
        return message.answers[index]

    def _submit(self) -> None:
        message, self._next = self._next, None
        if message is None:
            return
        self._under_way = True
        loop = clock()

        def arrived(future: Any) -> None:  # in a thread of Ray's
            with suppress(RuntimeError):  # the loop has ended, and with it all who waited
                loop.call_soon_threadsafe(self._arrived, message, future)

        self._send(message.questions).future().add_done_callback(arrived)

    def _arrived(self, message: "_Message[Q, A]", future: Any) -> None:
        self._under_way = False
        message.end(future)
        self._submit()


class _Message(Generic[Q, A]):
    """Questions that go together."""

    def __init__(self) -> None:
        self.questions: list[Q] = []
        self.answers: Sequence[A] = ()
        self.failure: rx.RayError | None = None
        self.arrived = anyio.Event()

    def end(self, future: Any) -> None:
        """Take the answers."""
        try:
            self.answers = future.result()
        except rx.RayError as exc:
            self.failure = exc
        self.arrived.set()
