"""One lease: where it may be, and how it goes on from there."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from protocols.errors import InvariantError
from protocols.grading import Grade, GradeFault
from protocols.ledger import LeaseRecord
from protocols.messages import LeaseId, WeightVersion
from protocols.prompts import Prompt
from protocols.rollouts import GroupReceipt


class State(StrEnum):
    """Where a lease is. The last three settle it."""

    ADMITTED = "admitted"
    GENERATING = "generating"
    GRADED = "graded"
    CLAIMED = "claimed"
    ABORTING = "aborting"
    ABORTED = "aborted"
    REOPENED = "reopened"
    COMMITTED = "committed"
    FILTERED = "filtered"
    DROPPED = "dropped"

    __hash__ = str.__hash__  # a group's states are looked up a hundred times, and Enum's own is written in Python


TRANSITIONS: Mapping[State, frozenset[State]] = {
    State.ADMITTED: frozenset({State.GENERATING, State.ABORTING}),
    State.GENERATING: frozenset({State.GRADED, State.ABORTING}),
    State.GRADED: frozenset({State.CLAIMED, State.FILTERED, State.ABORTING}),
    State.CLAIMED: frozenset({State.COMMITTED, State.GRADED}),
    State.ABORTING: frozenset({State.ABORTED}),
    State.ABORTED: frozenset({State.ADMITTED, State.DROPPED}),
    State.REOPENED: frozenset({State.ADMITTED, State.GRADED, State.DROPPED}),
    State.COMMITTED: frozenset(),
    State.FILTERED: frozenset(),
    State.DROPPED: frozenset(),
}
"""Every transition of one lease; anything else is an ``InvariantError``. Only ``Resumed`` reopens, and many at once."""

SETTLED = frozenset({State.COMMITTED, State.FILTERED, State.DROPPED})
RUNNING = (State.ADMITTED, State.GENERATING, State.ABORTING, State.ABORTED)
_FINISHED = frozenset({State.GRADED, State.CLAIMED, State.REOPENED})


INITIAL = WeightVersion(0)


class Lease(msgspec.Struct, kw_only=True):
    """One lease. A struct is made three times as fast as a dataclass, and each lease twice: a resume makes millions.

    Attributes:
        first_attempt: The attempt that it was admitted with, by this life of the run; one later for each attempt
            that was ended through no failure.
        version: Of its oldest token; until its receipt is there, of the weights that were served when the attempt
            began: no token is older.
        receipt: Of the finished rollouts, once they are delivered.
        grades: One a sample, once graded.
        finished_at_s: When its rollouts were finished, by the run's clock.
    """

    lease_id: LeaseId
    prompt: Prompt
    group_size: int
    attempt: int = 0
    first_attempt: int = 0
    version: WeightVersion = INITIAL
    state: State = State.ADMITTED
    receipt: GroupReceipt | None = None
    grades: tuple[Grade | GradeFault, ...] = ()
    finished_at_s: float = 0.0

    @property
    def finished_receipt(self) -> GroupReceipt:
        """The receipt; asking before it is there is an error of ours."""
        if self.receipt is None:
            raise InvariantError(f"{self.lease_id} is {self.state} and has no receipt")
        return self.receipt

    @property
    def graded(self) -> bool:
        """Whether it may be trained."""
        return self.state is State.GRADED

    @property
    def generating(self) -> bool:
        """Whether its episodes are being played."""
        return self.state is State.GENERATING and self.receipt is None

    @property
    def tokens(self) -> int:
        """Tokens of its finished samples."""
        return 0 if self.receipt is None else self.receipt.tokens

    @property
    def tries(self) -> int:
        """Attempts in this life of the run: one that was killed does not count against a group."""
        return self.attempt - self.first_attempt + 1

    def check(self, state: State, *, only_from: State | None = None) -> None:
        """Refuse a transition that there is not, or that is not from the one state that it may be from."""
        if state not in TRANSITIONS[self.state] or (only_from is not None and self.state is not only_from):
            raise InvariantError(f"{self.lease_id} cannot go from {self.state} to {state}")

    def finish(self, receipt: GroupReceipt) -> None:
        """Take the receipt of the finished rollouts, and the age of the group from it."""
        self.receipt = receipt
        self.version = min(receipt.versions, default=self.version)

    def finished_by(self, version: WeightVersion) -> bool:
        """Whether it was graded, never given up, and no weights newer than ``version`` made any of it."""
        newest = max(self.receipt.versions if self.receipt else (), default=self.version)
        return bool(self.grades) and self.state in _FINISHED and newest <= version

    def bare(self) -> "Lease":
        """Return what a resume needs of a settled lease: it is graded anew."""
        return Lease(
            lease_id=self.lease_id,
            prompt=self.prompt,
            group_size=self.group_size,
            attempt=self.attempt,
            first_attempt=self.first_attempt,
            version=self.version,
            state=self.state,
        )

    def record(self) -> LeaseRecord:
        """Return this lease as a message."""
        values: dict[str, Any] = {name: getattr(self, name) for name in LeaseRecord.__struct_fields__}
        values["state"] = self.state.value
        return LeaseRecord(**values)

    @classmethod
    def of(cls, record: LeaseRecord) -> "Lease":
        """Return the lease that a message describes."""
        values: dict[str, Any] = msgspec.structs.asdict(record)
        values["state"] = State(record.state)
        return cls(**values)
