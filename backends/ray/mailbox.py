"""What a worker has for the controller, which comes and asks for it."""

from collections import deque

import anyio

from backends.ray.messages import Mail, Question, Reply
from backends.ray.together import MESSAGE_BYTES
from protocols.aio import Doorbell


class Mailbox:
    """Holds questions, and answers to calls that came together, until the controller takes them."""

    def __init__(self) -> None:
        self._questions: deque[Question] = deque()
        self._answers: deque[tuple[int, Reply]] = deque()
        self._bell = Doorbell()

    def ask(self, question: Question) -> None:
        """Have a question taken."""
        self._questions.append(question)
        self._bell.ring()

    def answer(self, number: int, reply: Reply) -> None:
        """Have the answer to a call taken."""
        self._answers.append((number, reply))
        self._bell.ring()

    async def take(self, within_s: float) -> Mail:
        """Return what there is, as much as one message carries, as soon as there is something; or nothing."""
        with anyio.move_on_after(within_s):
            while not self._questions and not self._answers:
                await self._bell.wait()
        mail: Mail = [], []
        room = MESSAGE_BYTES
        while room > 0 and self._questions:
            mail[0].append(self._questions.popleft())
            room -= len(mail[0][-1][3])
        while room > 0 and self._answers:
            mail[1].append(self._answers.popleft())
            room -= reply_size(mail[1][-1])
        return mail


def reply_size(answer: tuple[int, Reply]) -> int:
    """Return the bytes of an answer."""
    _, (result, failure) = answer
    return len(result or b"") + len(failure or b"")
