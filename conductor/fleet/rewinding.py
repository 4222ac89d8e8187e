"""A run that has lost what it trained goes back to its last checkpoint, in another life of the same process."""

from dataclasses import dataclass

import anyio

from conductor.core.failover import GoBack, Raise, Strikes, decide_about_state, state_cause
from conductor.fleet.course import Happening
from conductor.fleet.journal import Journal
from protocols.errors import InvariantError, StateLost
from protocols.fleet import Restarts
from protocols.incidents import Incident
from protocols.messages import WeightVersion, WorkerId


@dataclass(frozen=True, kw_only=True)
class _Loss:
    """One loss, until the run goes on or is given up; what is lost on the way back belongs to it.

    Attributes:
        errors: The losses, the first one first.
        began: When it was found.
        version: The trainer's at that moment.
        checkpoint: What there is to go back to.
    """

    errors: tuple[StateLost, ...]
    began: float
    version: WeightVersion
    checkpoint: WeightVersion | None
    decision: GoBack | Raise


class Rewinding:
    """Decides about every loss of what was trained, and tells of each in an incident. It outlives the lives of a run.

    Args:
        role: Whose workers hold what is trained.
        restarts: What the role may bear. Steps beyond the one at which it was lost refill it, not those that are made
            again.
    """

    def __init__(self, role: str, restarts: Restarts) -> None:
        self._role = role
        self._restarts = restarts
        self._strikes = Strikes()
        self._loss: _Loss | None = None

    def judge(self, error: StateLost, *, version: WeightVersion, checkpoint: WeightVersion | None) -> None:
        """Decide about a loss, at the moment that it ends a life of the run.

        Args:
            error: What ends it.
            version: The trainer's, when it was lost.
            checkpoint: The last one of the run; None: there is none.
        """
        cause, before = state_cause(error), self._loss
        if before is not None:  # this life had not come to load it
            version, checkpoint = before.version, before.checkpoint
        self._strikes.strike(cause, version)
        spent = self._strikes.counts[cause]
        self._loss = _Loss(
            errors=(*(before.errors if before else ()), error),
            began=before.began if before else anyio.current_time(),
            version=version,
            checkpoint=checkpoint,
            decision=decide_about_state(
                error, role=self._role, spent=spent, restarts=self._restarts, checkpoint=checkpoint
            ),
        )

    async def conclude(self, journal: Journal) -> None:
        """Write down that the job is given up, if it is, while the life that ends can still write."""
        if self._loss is not None and isinstance(self._loss.decision, Raise):
            await journal.close(self._incident(self._loss))

    async def go_back(self) -> None:
        """Pause before the next life.

        Raises:
            ConductorError: The job is given up; what was noted on the loss stands on it.
        """
        loss = self._loss
        if loss is None:
            raise InvariantError("nothing was lost that a run could go back for")
        if isinstance(loss.decision, Raise):
            for note in getattr(loss.errors[-1], "__notes__", ()):
                loss.decision.error.add_note(note)
            raise loss.decision.error from loss.errors[-1]
        await anyio.sleep(loss.decision.after_s)

    def explain(self, error: Exception) -> None:
        """Note on an error of a life that did not come to train why it was begun, if it was by going back."""
        if self._loss is not None:
            error.add_note(f"the run was going back to its last checkpoint, since {self._loss.errors[0]}")

    async def arrive(self, journal: Journal) -> None:
        """Write down that a life goes on from the checkpoint, if it began by going back."""
        if self._loss is not None:
            loss, self._loss = self._loss, None
            await journal.close(self._incident(loss))

    def _incident(self, loss: _Loss) -> Incident:
        given_up = loss.decision.error if isinstance(loss.decision, Raise) else None
        happening = Happening(
            began=loss.began,
            version=loss.version,
            cause=state_cause(loss.errors[0]),
            lost=tuple(map(WorkerId, loss.errors[0].workers)),
            level="job",
            verdict="given_up" if given_up else "restored",
            attempts=len(loss.errors) - (given_up is not None),
            details=[str(error) for error in (*loss.errors, given_up) if error is not None],
        )
        return happening.incident(self._role)
