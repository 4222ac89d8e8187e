"""What a worker has for the controller, which comes and asks for it."""

import anyio

from backends.ray.messages import Mail, Question, Reply
from protocols.aio import Doorbell


class Mailbox:
    """Holds questions, and answers to calls that came together, until the controller takes them all."""

    def __init__(self) -> None:
        self._questions: list[Question] = []
        self._answers: list[tuple[int, Reply]] = []
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
        """Return all that there is, as soon as there is something, or nothing after a while."""
        with anyio.move_on_after(within_s):
            while not self._questions and not self._answers:
                await self._bell.wait()
        mail = self._questions, self._answers
        self._questions, self._answers = [], []
        return mail
