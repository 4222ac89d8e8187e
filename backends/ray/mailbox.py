"""What a worker has for the controller, which comes and asks for it."""

from collections import deque

import anyio

from backends.ray.messages import Mail, Question, Reply
from backends.ray.together import MESSAGE_BYTES, loaded
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
        questions = loaded(self._questions, _question_size)
        room = MESSAGE_BYTES - sum(map(_question_size, questions))
        return questions, loaded(self._answers, reply_size, room, least=0 if questions else 1)


def _question_size(question: Question) -> int:
    return len(question[3])


def reply_size(answer: tuple[int, Reply]) -> int:
    """Return the bytes of an answer."""
    _, (result, failure) = answer
    return len(result or b"") + len(failure or b"")
