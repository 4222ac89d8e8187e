"""One failover while it lasts."""

from dataclasses import dataclass, field

import anyio

from protocols.errors import ConductorError, Infeasible, Transient, WorkerLost
from protocols.fleet import Cause
from protocols.ledger import Incident, Level, Verdict
from protocols.messages import WeightVersion, WorkerId


@dataclass(kw_only=True)
class Course:
    """How far it has come.

    Attributes:
        began: When, by the loop's clock; ``version``: the trainer's then.
        cause: Of the first loss; ``failure``: the last one.
        lost: Who is to be brought back, ``left``: how many of the role are not lost.
        level: How far it had to go.
        verdict: What comes of it, unless the job is given up.
        attempts: Launches until now.
        unchecked: Whether some have moved since their nodes last passed the check.
        details: What happened, in words.
    """

    began: float
    version: WeightVersion
    cause: Cause
    failure: ConductorError
    lost: tuple[WorkerId, ...]
    left: int
    level: Level = "worker"
    verdict: Verdict = "restored"
    attempts: int = 0
    unchecked: bool = False
    details: list[str] = field(default_factory=list[str])

    def incident(self, role: str) -> Incident:
        """Return what is told of it when it has ended."""
        return Incident(
            role=role,
            workers=self.lost,
            cause=self.cause,
            level=self.level,
            attempts=self.attempts,
            verdict=self.verdict,
            detail="; then ".join(dict.fromkeys(self.details)),
            version=self.version,
            seconds=anyio.current_time() - self.began,
        )


def cause_of(failure: ConductorError) -> Cause:
    """Return the cause whose budget a failure is taken from."""
    match failure:
        case WorkerLost(preempted=True):
            return "preemption"
        case WorkerLost():
            return "worker"
        case Transient() | Infeasible():
            return "controller"
        case _:
            return "worker"
