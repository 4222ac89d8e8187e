"""Rewards."""

from typing import Literal, Protocol

from protocols.messages import LeaseId, Message, PayloadRef
from protocols.prompts import Prompt


class GradeRequest(Message, frozen=True, kw_only=True):
    """Samples of one group to grade.

    Attributes:
        lease_id, attempt: Whose they are.
        prompt: With the fields that the reward reads.
        payload: Where the ``GroupPayload`` lies.
        samples: Indices into it, in the order in which grades are wanted.
    """

    lease_id: LeaseId
    attempt: int
    prompt: Prompt
    payload: PayloadRef
    samples: tuple[int, ...]


class Grade(Message, frozen=True, kw_only=True, tag="grade"):
    """A finite reward, and the parts it was made of, by name."""

    reward: float
    parts: dict[str, float] = {}


FaultKind = Literal["raised", "not_a_number", "wrong_type", "cancelled", "timed_out", "crashed", "empty"]


class GradeFault(Message, frozen=True, kw_only=True, tag="fault"):
    """A reward that could not be had. It is never a silent 0.

    Attributes:
        kind: ``raised`` an exception; ``not_a_number`` is NaN or infinite; ``wrong_type`` is no number
            (None, text); ``cancelled`` from within; ``timed_out``; ``crashed`` its process; ``empty``: the
            completion has no tokens, and nobody was asked.
        detail: For people: the exception and the user's own traceback, the value, the deadline.
    """

    kind: FaultKind
    detail: str


class GradeReport(Message, frozen=True, kw_only=True):
    """One grade or fault a sample, in the order asked."""

    lease_id: LeaseId
    attempt: int
    grades: tuple[Grade | GradeFault, ...]


class GraderPort(Protocol):
    """Gives rewards. Any number of requests at a time."""

    async def grade(self, request: GradeRequest) -> GradeReport:
        """Grade every sample: a number or a classed fault each.

        Idempotent as far as the user's function is. Cancelling: stops the user's code, also where it hangs.

        Raises:
            PayloadLost: The completions are gone, or are not what was put.
            Transient: The grader itself is lost.
        """
        ...
