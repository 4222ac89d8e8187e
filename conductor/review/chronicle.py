"""A record put in order: every attempt of every group with its fate, every step with the groups it trained.

All times are seconds on one axis. The run's own clock goes back to a checkpoint at each resume; here a later life
begins where the one before it ended.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from protocols.errors import CorruptLedger
from protocols.grading import Grade, GradeFault
from protocols.incidents import Incident
from protocols.ledger import (
    Aborting,
    Admitted,
    Checkpointed,
    Claimed,
    Committed,
    Compacted,
    Dropped,
    Evaluated,
    Filtered,
    Generating,
    Graded,
    LedgerEvent,
    Restored,
    Resumed,
    RunStarted,
    Stepped,
    Unclaimed,
)
from protocols.messages import DispatchId, LeaseId, WeightVersion
from protocols.prompts import Prompt
from protocols.rollouts import GroupReceipt


@dataclass(slots=True, kw_only=True, eq=False)
class Attempt:
    """One attempt of a group.

    Attributes:
        version: Of the weights that were served when it began.
        began_s, finished_s, graded_s: When it was sent out, when its rollouts were there, when its grades were; None:
            it did not come so far, or the record does not say.
        fate: What became of it, for people.
        dispatches: Batches that claimed it.
        step: The step that trained it; None: none did, or one that a resume went back behind.
    """

    lease_id: LeaseId
    number: int
    version: WeightVersion
    began_s: float | None = None
    finished_s: float | None = None
    graded_s: float | None = None
    receipt: GroupReceipt | None = None
    grades: tuple[Grade | GradeFault, ...] = ()
    fate: str = "open"
    dispatches: list[DispatchId] = field(default_factory=list[DispatchId])
    step: int | None = None

    @property
    def rewards(self) -> list[float]:
        """The rewards of the samples that have one."""
        return [grade.reward for grade in self.grades if isinstance(grade, Grade)]

    @property
    def oldest(self) -> int:
        """The version of its oldest token."""
        samples = () if self.receipt is None else self.receipt.samples
        return min((segment.version for sample in samples for segment in sample.segments), default=self.version)


@dataclass(slots=True, kw_only=True)
class Step:
    """One closed train step.

    Attributes:
        stepped: Its event.
        dispatch_id: The batch that it trained; empty where that was summed up.
        attempts: The groups of the batch.
        waits_from_s: Since when the trainer was free for it.
        train_from_s, trained_s: When it trained.
        closed_s: When it was closed.
        counts: Whether no resume went back behind it.
    """

    stepped: Stepped
    dispatch_id: str
    attempts: tuple[Attempt, ...]
    closed_s: float
    counts: bool = True

    @property
    def number(self) -> int:
        """The trainer's version after it."""
        return self.stepped.record.step

    @property
    def metrics(self) -> dict[str, float]:
        """What the trackers were told."""
        return self.stepped.record.metrics

    @property
    def waits_from_s(self) -> float:
        """When the step before it was done."""
        return self.closed_s - self.metrics.get("time/step_s", 0.0)

    @property
    def train_from_s(self) -> float:
        """When its batch was there."""
        waited = self.metrics.get("time/wait_s", 0.0) + self.metrics.get("time/checkpoint_s", 0.0)
        return self.waits_from_s + waited

    @property
    def trained_s(self) -> float:
        """When the parameters were changed."""
        return self.train_from_s + self.metrics.get("time/train_s", 0.0)


@dataclass(slots=True, kw_only=True)
class Span:
    """Something that took time: a publish, a checkpoint, an incident; ``event`` is where it was read."""

    began_s: float
    ended_s: float
    event: LedgerEvent


@dataclass(kw_only=True)
class Chronicle:
    """What happened in a run, in order.

    Attributes:
        origin: Its first event.
        prompts: By lease.
        attempts: By lease, in order.
        steps: All of them, those included that a resume went back behind.
        publishes: One for each that a step told of.
        checkpoints, incidents: As they ended.
        evaluations: Those that count.
        lives: When each life of the run began.
        compacted: Whether the oldest events were summed up: of their groups nothing is known.
    """

    origin: RunStarted
    prompts: dict[LeaseId, Prompt] = field(default_factory=dict[LeaseId, Prompt])
    attempts: dict[LeaseId, list[Attempt]] = field(default_factory=dict[LeaseId, list[Attempt]])
    steps: list[Step] = field(default_factory=list[Step])
    publishes: list[Span] = field(default_factory=list[Span])
    checkpoints: list[Span] = field(default_factory=list[Span])
    incidents: list[Span] = field(default_factory=list[Span])
    evaluations: list[Evaluated] = field(default_factory=list[Evaluated])
    lives: list[float] = field(default_factory=lambda: [0.0])
    compacted: bool = False

    @property
    def counted(self) -> list[Step]:
        """The steps that no resume went back behind."""
        return [step for step in self.steps if step.counts]

    def all_attempts(self) -> Iterator[Attempt]:
        """Iterate over every attempt, in the order of admission of their groups."""
        return (attempt for attempts in self.attempts.values() for attempt in attempts)


def chronicle(events: Sequence[LedgerEvent]) -> Chronicle:
    """Put a record in order.

    Raises:
        CorruptLedger: It does not begin with the start of a run.
    """
    if not events or not isinstance(events[0], RunStarted):
        raise CorruptLedger("the record does not begin with the start of a run")
    reader = _Reader(Chronicle(origin=events[0]))
    for event in events[1:]:
        reader.read(event)
    return reader.told


class _Reader:
    """Reads events one by one."""

    def __init__(self, told: Chronicle) -> None:
        self.told = told
        self._base_s = 0.0  # what the run's clock is behind by in this life
        self._now_s = 0.0
        self._claims: dict[DispatchId, tuple[LeaseId, ...]] = {}
        self._committed: Committed | None = None
        self._acts: dict[type, Callable[[Any], None]] = {
            Admitted: self._admit,
            Generating: self._generate,
            Graded: self._grade,
            Claimed: self._claim,
            Unclaimed: self._unclaim,
            Committed: self._commit,
            Filtered: lambda event: self._end(event.lease_id, f"filtered: {event.reason}"),
            Aborting: lambda event: self._end(event.lease_id, f"aborted: {event.reason}"),
            Dropped: lambda event: self._end(event.lease_id, f"dropped: {event.reason}"),
            Restored: lambda event: self._end(event.lease_id, "open"),
            Stepped: self._close,
            Checkpointed: self._save,
            Evaluated: self.told.evaluations.append,
            Incident: self._incident,
            Resumed: self._resume,
            Compacted: self._expand,
        }

    def read(self, event: LedgerEvent) -> None:
        """Take in the next event."""
        act = self._acts.get(type(event))
        if act is not None:
            act(event)

    def _at(self, clock_s: float) -> float:
        """Return a time of the run's clock on the common axis."""
        self._now_s = max(self._now_s, self._base_s + clock_s)
        return self._base_s + clock_s

    def _last(self, lease_id: LeaseId) -> Attempt | None:
        attempts = self.told.attempts.get(lease_id)
        return attempts[-1] if attempts else None

    def _admit(self, event: Admitted) -> None:
        self.told.prompts[event.lease_id] = event.prompt
        self.told.attempts[event.lease_id] = []

    def _generate(self, event: Generating) -> None:
        began_s = self._at(event.at_s)
        attempt = Attempt(lease_id=event.lease_id, number=event.attempt, version=event.version, began_s=began_s)
        self.told.attempts.setdefault(event.lease_id, []).append(attempt)

    def _grade(self, event: Graded) -> None:
        attempt = self._last(event.lease_id)
        if attempt is None:
            return
        attempt.receipt, attempt.grades, attempt.fate = event.receipt, event.grades, "graded"
        if event.at_s:  # records of earlier versions have no times
            attempt.finished_s, attempt.graded_s = self._at(event.finished_at_s), self._at(event.at_s)

    def _claim(self, event: Claimed) -> None:
        self._claims[event.dispatch_id] = event.leases
        for attempt in filter(None, map(self._last, event.leases)):
            attempt.dispatches.append(event.dispatch_id)
            attempt.fate = "claimed"

    def _unclaim(self, event: Unclaimed) -> None:
        for lease_id in self._claims.pop(event.dispatch_id, ()):
            self._end(lease_id, "graded")

    def _commit(self, event: Committed) -> None:
        self._committed = event
        self._claims.pop(event.dispatch_id, None)
        for attempt in filter(None, map(self._last, event.leases)):
            attempt.step, attempt.fate = event.version, "trained"

    def _end(self, lease_id: LeaseId, fate: str) -> None:
        attempt = self._last(lease_id)
        if attempt is not None:
            attempt.fate = fate

    def _close(self, event: Stepped) -> None:
        done, self._committed = self._committed, None
        ours = done is not None and done.version == event.record.step
        attempts = tuple(filter(None, map(self._last, done.leases))) if ours and done is not None else ()
        closed_s = self._at(event.seconds)
        name = done.dispatch_id if ours and done is not None else ""
        self.told.steps.append(Step(stepped=event, dispatch_id=name, attempts=attempts, closed_s=closed_s))
        for began_s, ended_s in event.publishes:
            span = Span(began_s=self._base_s + began_s, ended_s=self._base_s + ended_s, event=event)
            self.told.publishes.append(span)

    def _save(self, event: Checkpointed) -> None:
        if event.at_s:
            span = Span(began_s=self._at(event.began_at_s), ended_s=self._at(event.at_s), event=event)
            self.told.checkpoints.append(span)

    def _incident(self, event: Incident) -> None:
        # it says how long it took and not when; it was written when it ended
        began_s = max(0.0, self._now_s - event.seconds)
        self.told.incidents.append(Span(began_s=began_s, ended_s=self._now_s, event=event))

    def _resume(self, event: Resumed) -> None:
        for step in self.told.steps:
            step.counts = step.counts and step.number <= event.version
        self.told.evaluations[:] = [done for done in self.told.evaluations if done.record.step <= event.version]
        for attempt in self.told.all_attempts():
            if attempt.step is not None and attempt.step > event.version:
                attempt.step, attempt.fate = None, f"taken back: resumed from step {event.version}"
            elif attempt.fate in {"open", "graded", "claimed"}:
                attempt.fate = f"lost: resumed from step {event.version}"
        counted = [step for step in self.told.steps if step.counts]
        self._base_s = self._now_s - (counted[-1].stepped.seconds if counted else 0.0)
        self.told.lives.append(self._now_s)

    def _expand(self, event: Compacted) -> None:
        self.told.compacted = True
        for lease in (*event.recent, *event.open):
            self.told.prompts[lease.lease_id] = lease.prompt
            fate = "trained" if lease.state == "committed" else lease.state
            attempt = Attempt(lease_id=lease.lease_id, number=lease.attempt, version=lease.version, fate=fate)
            attempt.receipt, attempt.grades = lease.receipt, lease.grades
            self.told.attempts[lease.lease_id] = [attempt]
