"""Messages that are sent together: to Ray one costs as much as thirty in one.

The first of a tick waits for the others of that tick, and what comes while a message is under way waits until that is
answered. So there are few where there is much to say, and where there is little each goes at once.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

import anyio
import ray.exceptions as rx

from backends.ray.failures import translated
from protocols.aio import clock
from protocols.errors import ConductorError, PortFailed

Q = TypeVar("Q")
A = TypeVar("A")

MESSAGE_BYTES = 64 << 10
"""Of the questions of one message, but for one that is larger by itself. From 100 KiB on Ray stores an argument or a
result as an object, which takes room and messages of its own."""


def loaded(waiting: deque[Q], size: Callable[[Q], int], room: int = MESSAGE_BYTES, *, least: int = 1) -> list[Q]:
    """Take from the front what has room in one message, and so many in any case."""
    taken: list[Q] = []
    while waiting and (len(taken) < least or size(waiting[0]) <= room):
        room -= size(waiting[0])
        taken.append(waiting.popleft())
    return taken


class _Asked(Generic[Q, A]):
    """A question, and what became of it."""

    def __init__(self, question: Q) -> None:
        self.question = question
        self.answered = anyio.Event()
        self.answer: A
        self.failure: Exception | None = None


class Together(Generic[Q, A]):
    """Asks somebody who answers all questions of a message at once, in the order in which they were asked.

    Args:
        send: Submits questions; its reference holds an answer for each of the first of them, one at least. The others
            are asked again.
        name: Whoever is asked.
        size: Bytes of a question.
    """

    def __init__(self, send: Callable[[list[Q]], Any], name: str, size: Callable[[Q], int] = lambda _: 0) -> None:
        self._send = send
        self._name = name
        self._size = size
        self._waiting: deque[_Asked[Q, A]] = deque()
        self._under_way = False

    @property
    def busy(self) -> bool:
        """Whether a question would wait for those before it."""
        return self._under_way or bool(self._waiting)

    async def ask(self, question: Q) -> A:
        """Return the answer. It is asked whatever becomes of the caller.

        Raises:
            ConductorError: What an error of Ray means.
        """
        if not self.busy:
            clock().call_soon(self._submit)
        asked: _Asked[Q, A] = _Asked(question)
        self._waiting.append(asked)
        await asked.answered.wait()
        if asked.failure is not None:
            raise self._meaning(asked.failure) from asked.failure
        return asked.answer

    def _meaning(self, failure: Exception) -> ConductorError:
        if isinstance(failure, rx.RayError):
            return translated(self._name, failure)
        return PortFailed(f"{self._name} could not be asked: {failure}")

    def _submit(self) -> None:
        if not self._waiting:
            return
        message = loaded(self._waiting, lambda asked: self._size(asked.question))
        self._under_way = True
        loop = clock()

        def arrived(future: Any) -> None:  # in a thread of Ray's
            with suppress(RuntimeError):  # the loop has ended, and with it all who waited
                loop.call_soon_threadsafe(self._arrived, message, future)

        try:
            self._send([asked.question for asked in message]).future().add_done_callback(arrived)
        except Exception as exc:  # noqa: BLE001 - it is for those who wait
            self._fail(message, exc)
            self._go_on()

    def _arrived(self, message: list[_Asked[Q, A]], future: Any) -> None:
        try:
            answers: Sequence[A] = future.result()
        except Exception as exc:  # noqa: BLE001 - it is for those who wait
            self._fail(message, exc)
        else:
            for asked, asked.answer in zip(message, answers, strict=False):
                asked.answered.set()
            self._waiting.extendleft(reversed(message[len(answers) :]))
        self._go_on()

    def _fail(self, message: list[_Asked[Q, A]], failure: Exception) -> None:
        for asked in message:
            asked.failure = failure
            asked.answered.set()

    def _go_on(self) -> None:
        self._under_way = False
        if self._waiting:
            self._submit()
