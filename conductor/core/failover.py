"""What is done about lost workers: a pure function of how often they were lost, and what their role can bear."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from protocols.errors import BudgetExhausted, ConductorError, PortFailed, StateLost
from protocols.fleet import Cause, PlannedRole, Restarts
from protocols.messages import WeightVersion, WorkerId
from protocols.pauses import pause_s

_PROVEN = 2
"""Steps of the run that a worker lives through until its earlier failures are forgiven."""


_BEFORE = WeightVersion(0)


@dataclass
class Strikes:
    """How often one worker was lost since it last lived through some steps of the run."""

    counts: Counter[Cause] = field(default_factory=Counter[Cause])
    since: WeightVersion = _BEFORE

    def strike(self, cause: Cause, version: WeightVersion) -> None:
        """Count a loss at the trainer's version ``version``."""
        if not self.standing(version):
            self.counts.clear()
        self.counts[cause] += 1
        self.since = max(self.since, version)  # what is trained again is no progress

    def standing(self, version: WeightVersion) -> bool:
        """Return whether there were any that the run's progress to ``version`` has not made good."""
        return bool(self.counts) and version - self.since < _PROVEN


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What a decision is made from.

    Attributes:
        role: Whose workers are lost, and what it may bear.
        lost: For each lost worker, how often it was lost, for each cause, this time included.
        cause: This time's.
        left: Workers of the role that are not lost.
        holds_state: Whether they hold what was trained: one that is left is needed to go on.
        restarted: Whether all of the role was launched anew since the run last moved on.
        failure: This time's.
    """

    role: PlannedRole
    lost: Mapping[WorkerId, Mapping[Cause, int]]
    cause: Cause
    left: int
    holds_state: bool
    restarted: bool
    failure: str


@dataclass(frozen=True)
class Restart:
    """Launch workers again, after a pause: those that are lost, or with ``role`` all of them."""

    after_s: float
    role: bool = False


@dataclass(frozen=True)
class Resize:
    """Go on without the workers that are lost: the role is so much smaller from then on."""


@dataclass(frozen=True)
class GoBack:
    """Go back to the last checkpoint with the whole job, after a pause."""

    after_s: float


@dataclass(frozen=True)
class Raise:
    """End the job."""

    error: ConductorError


Decision = Restart | Resize | Raise


def decide(situation: Situation) -> Restart | Raise:
    """Decide what is done about lost workers: for them, for their role, or for the job."""
    role, cause = situation.role, situation.cause
    if situation.holds_state and not situation.left:
        lost = tuple(situation.lost)
        return Raise(StateLost(workers=lost, cause=situation.failure, preempted=cause == "preemption"))
    spent, worker = max((counts.get(cause, 0), name) for name, counts in situation.lost.items())
    allowed = role.restarts.allowed(cause)
    if spent <= allowed:
        return Restart(0.0 if spent <= 1 else pause_s(spent - 1, worker))
    if not (situation.restarted or situation.holds_state):
        return Restart(pause_s(spent, worker), role=True)
    return Raise(
        BudgetExhausted(
            what=f"{worker} ({cause})",
            spent=spent,
            allowed=allowed,
            field=f"fleet.roles.{role.name}.restarts.{cause}",
            last=situation.failure,
        )
    )


def decide_about_state(
    loss: StateLost, *, role: str, spent: int, restarts: Restarts, checkpoint: WeightVersion | None
) -> GoBack | Raise:
    """Decide what becomes of a job that has lost what it trained.

    Args:
        loss: What was lost, and how.
        role: Whose workers held it.
        spent: How often that happened for this cause, this time included, since the run last moved on.
        restarts: What the role may bear.
        checkpoint: The last one of the run; None: there is none.
    """
    cause = state_cause(loss)
    if checkpoint is None:
        return Raise(PortFailed(f"{loss}; there is no checkpoint to go back to"))
    if spent <= restarts.allowed(cause):
        return GoBack(0.0 if spent <= 1 else pause_s(spent - 1, role))
    return Raise(
        BudgetExhausted(
            what=f"{role} ({cause})",
            spent=spent,
            allowed=restarts.allowed(cause),
            field=f"fleet.roles.{role}.restarts.{cause}",
            last=str(loss),
        )
    )


def state_cause(loss: StateLost) -> Cause:
    """Return the cause whose budget a loss of state is taken from."""
    return "preemption" if loss.preempted else "worker"
