"""What happened to the workers of a run while it went on; events of its record, and in none of its accounts."""

from typing import Literal

from protocols.fleet import Cause
from protocols.messages import Message, WeightVersion, WorkerId

Level = Literal["worker", "role", "node", "job"]
Verdict = Literal["restored", "resized", "given_up", "noted"]


class Incident(Message, frozen=True, kw_only=True, tag="incident"):
    """A failover, from the loss of workers to its verdict. Written when it ends; it is in no accounts.

    Attributes:
        role: Whose workers.
        workers: Those that were lost, or launched again with them.
        cause: What began it.
        level: How far it went: the workers, all of their role, their nodes, which they left for others, or the whole
            job, which it ended or took back to its last checkpoint.
        attempts: Times that they were launched.
        verdict: Whether they are there again, or the role goes on without them, or the job was given up, or nothing was
            done but to take note.
        detail: Why they were lost, and where it was given up, why.
        version: The trainer's version when it began.
        seconds: How long it took.
        aside: Failure domains that were set aside when it ended, and for how many seconds more.
    """

    role: str
    workers: tuple[WorkerId, ...]
    cause: Cause
    level: Level
    attempts: int
    verdict: Verdict
    detail: str
    version: WeightVersion
    seconds: float
    aside: dict[str, float] = {}


class Scaled(Message, frozen=True, kw_only=True, tag="scaled"):
    """A role was to have more workers, or fewer, at somebody's request. Written when that ends; it is in no accounts.

    Attributes:
        role: Whose size.
        before, after: Workers that it had, and has.
        workers: Those that were added or ended, or were to be.
        verdict: Whether it has the size asked for, or is as it was before.
        detail: Why it is as it was.
        version: The trainer's version when it began.
        seconds: How long it took.
    """

    role: str
    before: int
    after: int
    workers: tuple[WorkerId, ...]
    verdict: Literal["scaled", "undone"]
    detail: str
    version: WeightVersion
    seconds: float

    def __str__(self) -> str:
        change = f"{self.role} had {self.before} workers at v{self.version} and has {self.after}"
        return f"{change}; undone: {self.detail}" if self.detail else change
