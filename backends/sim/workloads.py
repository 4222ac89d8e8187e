"""The scripted workloads of a simulation that are no engine and no trainer."""

from collections.abc import Callable, Sequence
from pathlib import Path

from backends.sim.clock import spend
from backends.sim.grader import alternating
from protocols.backend import PayloadPort
from protocols.errors import PayloadLost
from protocols.grading import GradeReport, GradeRequest, GraderPort
from protocols.prompts import PromptContent
from protocols.rollouts import GroupPayload


class SimTokenizer:
    """Turns every prompt into one token and every completion into no text: nobody reads either."""

    stop_token_ids: tuple[int, ...] = ()

    def encode(self, content: PromptContent) -> tuple[int, ...]:
        """Return one token."""
        del content
        return (0,)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return no text."""
        del token_ids
        return ""

    def token_id(self, text: str) -> int | None:
        """Return the same token for every text."""
        del text
        return 0

    def save(self, folder: Path) -> None:
        """Write nothing: no model is saved."""
        del folder


class SimGrader:
    """Reads a group's payload, takes its time, and gives rewards that differ within the group.

    Args:
        payloads: Where payloads lie.
        grade_s: Seconds for a lease.
    """

    def __init__(self, payloads: PayloadPort, grade_s: Callable[[GradeRequest], float]) -> None:
        self._payloads = payloads
        self._grade_s = grade_s

    async def grade(self, request: GradeRequest) -> GradeReport:
        """Grade; see ``GraderPort.grade``."""
        payload = await self._payloads.get(request.payload)
        if not isinstance(payload, GroupPayload) or len(payload.samples) <= max(request.samples):
            raise PayloadLost(owner=request.payload.owner, cause="it is damaged")
        await spend(self._grade_s(request))
        grades = tuple(alternating(request))
        return GradeReport(lease_id=request.lease_id, attempt=request.attempt, grades=grades)


_: type[GraderPort] = SimGrader
