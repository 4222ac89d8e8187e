"""A grader that follows a script."""

from collections.abc import Callable, Sequence

from backends.sim.clock import spend
from protocols.grading import Grade, GradeFault, GradeReport, GradeRequest, GraderPort

Rewards = Callable[[GradeRequest], Sequence[Grade | GradeFault]]


def alternating(request: GradeRequest) -> list[Grade | GradeFault]:
    """Give 0 and 1 in turns, beginning with one or the other by the prompt's position: no group is all equal."""
    return [Grade(reward=float((sample + request.prompt.position) % 2)) for sample in request.samples]


class ScriptedGrader:
    """Grades as ``rewards`` says.

    Args:
        rewards: One grade or fault for each of ``request.samples``, in order; what it raises is raised.
        grade_s: Seconds that one request takes.

    Attributes:
        requests: Every request, in the order of arrival.
    """

    def __init__(self, rewards: Rewards = alternating, *, grade_s: float = 0.0) -> None:
        self._rewards = rewards
        self._grade_s = grade_s
        self.requests: list[GradeRequest] = []

    async def grade(self, request: GradeRequest) -> GradeReport:
        """Grade after ``grade_s``."""
        self.requests.append(request)
        await spend(self._grade_s)
        grades = tuple(self._rewards(request))
        return GradeReport(lease_id=request.lease_id, attempt=request.attempt, grades=grades)


_: type[GraderPort] = ScriptedGrader
