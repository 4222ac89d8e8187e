"""What an incident tells of, and one failover, while they last."""

from dataclasses import dataclass, field

import anyio

from protocols.errors import ConductorError, Infeasible, Transient, WorkerLost
from protocols.fleet import Cause
from protocols.incidents import Incident, Level, Verdict
from protocols.messages import WeightVersion, WorkerId


@dataclass(kw_only=True)
class Happening:
    """What an incident tells of, while it lasts.

    Attributes:
        began: When, by the loop's clock; ``version``: the trainer's then.
        cause: Of the first loss.
        lost: Whom it is about: who is to be brought back.
        level: How far it had to go.
        verdict: What comes of it.
        attempts: Launches until now.
        details: What happened, in words.
    """

    began: float
    version: WeightVersion
    cause: Cause
    lost: tuple[WorkerId, ...]
    level: Level = "worker"
    verdict: Verdict = "restored"
    attempts: int = 0
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


@dataclass(kw_only=True)
class Course(Happening):
    """How far a failover has come.

    Attributes:
        failure: The last one.
        left: How many of the role are not lost.
        unchecked: Whether some have moved since their nodes last passed the check.
    """

    failure: ConductorError
    left: int
    unchecked: bool = False


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
