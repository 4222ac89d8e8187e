"""The lease table: who owns each prompt group. Streams carry ids; this table is the truth.

The table changes only by ledger events (``apply``), so a replay of the ledger rebuilds it. Settled
leases are counted and forgotten: the table holds what is open, however long the run.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from conductor.result import Accounts
from protocols.errors import InvariantError
from protocols.grading import Grade, GradeFault
from protocols.ledger import (
    AbortConfirmed,
    Aborting,
    Admitted,
    Claimed,
    Committed,
    Dropped,
    Filtered,
    Generating,
    Graded,
    LedgerEvent,
    Readmitted,
    Unclaimed,
)
from protocols.messages import DispatchId, LeaseId
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
    COMMITTED = "committed"
    FILTERED = "filtered"
    DROPPED = "dropped"


TRANSITIONS: Mapping[State, frozenset[State]] = {
    State.ADMITTED: frozenset({State.GENERATING, State.ABORTING}),
    State.GENERATING: frozenset({State.GRADED, State.ABORTING}),
    State.GRADED: frozenset({State.CLAIMED, State.FILTERED, State.ABORTING}),
    State.CLAIMED: frozenset({State.COMMITTED, State.GRADED}),
    State.ABORTING: frozenset({State.ABORTED}),
    State.ABORTED: frozenset({State.ADMITTED, State.DROPPED}),
    State.COMMITTED: frozenset(),
    State.FILTERED: frozenset(),
    State.DROPPED: frozenset(),
}
"""Every transition there is. Anything else is an ``InvariantError``."""

SETTLED = frozenset({State.COMMITTED, State.FILTERED, State.DROPPED})
_RUNNING = (State.ADMITTED, State.GENERATING, State.ABORTING, State.ABORTED)


def lease_number(lease_id: LeaseId) -> int:
    """Return the admission number in ``L17``."""
    return int(lease_id[1:])


@dataclass(slots=True, kw_only=True)
class Lease:
    """One open lease.

    Attributes:
        receipt: Of the finished rollouts, once they are delivered.
        grades: One a sample, once graded.
        dispatch_id: The batch that claims it.
    """

    lease_id: LeaseId
    prompt: Prompt
    group_size: int
    attempt: int = 0
    state: State = State.ADMITTED
    receipt: GroupReceipt | None = None
    grades: tuple[Grade | GradeFault, ...] = ()
    dispatch_id: DispatchId | None = None

    @property
    def finished_receipt(self) -> GroupReceipt:
        """The receipt; asking before it is there is an error of ours."""
        if self.receipt is None:
            raise InvariantError(f"{self.lease_id} is {self.state} and has no receipt")
        return self.receipt


class LeaseTable:
    """All open leases and the accounts of all settled ones.

    Attributes:
        dispatched: Batches claimed so far.
        dropped, filtered: Groups so settled, by reason.
    """

    def __init__(self) -> None:
        self._open: dict[LeaseId, Lease] = {}
        self._dispatches: dict[DispatchId, tuple[LeaseId, ...]] = {}
        self._states: Counter[State] = Counter()
        self._admitted = 0
        self.dispatched = 0
        self.dropped: Counter[str] = Counter()
        self.filtered: Counter[str] = Counter()
        self._transitions: Mapping[type[LedgerEvent], Callable[[Any], None]] = {
            Admitted: self._admit,
            Generating: self._generate,
            Graded: self._grade,
            Filtered: self._filter,
            Claimed: self._claim,
            Unclaimed: self._unclaim,
            Committed: self._commit,
            Aborting: self._abort,
            AbortConfirmed: self._confirm_abort,
            Readmitted: self._readmit,
            Dropped: self._drop,
        }

    def __getitem__(self, lease_id: LeaseId) -> Lease:
        """Return an open lease.

        Raises:
            InvariantError: It is settled, or there never was one.
        """
        lease = self._open.get(lease_id)
        if lease is None:
            known = lease_number(lease_id) < self._admitted
            raise InvariantError(f"{lease_id} {'is settled' if known else 'was never admitted'}")
        return lease

    def __iter__(self) -> Iterator[Lease]:
        """Iterate over the open leases in the order of admission."""
        return iter(tuple(self._open.values()))

    @property
    def running(self) -> int:
        """Groups lent out that are not graded yet."""
        return sum(self._states[state] for state in _RUNNING)

    @property
    def accepted(self) -> int:
        """Groups that are graded and kept, trained ones included."""
        return self._states[State.GRADED] + self._states[State.CLAIMED] + self._states[State.COMMITTED]

    @property
    def accounts(self) -> Accounts:
        """Where every admitted group is."""
        return Accounts(
            admitted=self._admitted,
            committed=self._states[State.COMMITTED],
            filtered=self._states[State.FILTERED],
            dropped=self._states[State.DROPPED],
            open=len(self._open),
        )

    def next_lease_id(self) -> LeaseId:
        """Return the id that the next admission must use."""
        return LeaseId(f"L{self._admitted}")

    def next_dispatch_id(self) -> DispatchId:
        """Return the id that the next claim must use."""
        return DispatchId(f"D{self.dispatched}")

    def in_state(self, state: State) -> tuple[Lease, ...]:
        """Return the open leases in ``state``, in the order of admission."""
        return tuple(lease for lease in self._open.values() if lease.state is state)

    def dispatch(self, dispatch_id: DispatchId) -> tuple[Lease, ...]:
        """Return the leases that an open dispatch claims, in its order."""
        if dispatch_id not in self._dispatches:
            raise InvariantError(f"{dispatch_id} is no open dispatch")
        return tuple(self[lease_id] for lease_id in self._dispatches[dispatch_id])

    def open_dispatches(self) -> tuple[DispatchId, ...]:
        """Return the dispatches whose outcome is not recorded."""
        return tuple(self._dispatches)

    def deliver(self, receipt: GroupReceipt) -> None:
        """Keep the receipt of finished rollouts until it is graded.

        Raises:
            InvariantError: It is not the receipt of the running attempt, or not of all its samples, or some
                token has no weight version.
        """
        lease = self[receipt.lease_id]
        expected = (State.GENERATING, lease.attempt, lease.group_size)
        if (lease.state, receipt.attempt, len(receipt.samples)) != expected:
            raise InvariantError(
                f"receipt of {receipt.lease_id} attempt {receipt.attempt} with {len(receipt.samples)} samples; "
                f"the lease is {lease.state}, attempt {lease.attempt}, {lease.group_size} samples"
            )
        for index, sample in enumerate(receipt.samples):
            stamped = sum(segment.count for segment in sample.segments)
            if stamped != sample.tokens:
                raise InvariantError(
                    f"sample {index} of {receipt.lease_id} has {sample.tokens} tokens, and versions for {stamped}"
                )
        lease.receipt = receipt

    def apply(self, event: LedgerEvent) -> None:
        """Make the transition that ``event`` records, whole or not at all.

        Raises:
            InvariantError: The transition is not in the table, or its identities do not fit.
        """
        self._transitions[type(event)](event)

    def _admit(self, event: Admitted) -> None:
        if event.lease_id != self.next_lease_id():
            raise InvariantError(f"{event.lease_id} admitted where {self.next_lease_id()} is next")
        self._open[event.lease_id] = Lease(lease_id=event.lease_id, prompt=event.prompt, group_size=event.group_size)
        self._states[State.ADMITTED] += 1
        self._admitted += 1

    def _generate(self, event: Generating) -> None:
        self._running_attempt(event.lease_id, event.attempt)
        self._move(self[event.lease_id], State.GENERATING)

    def _grade(self, event: Graded) -> None:
        lease = self[event.lease_id]
        self._running_attempt(event.lease_id, event.receipt.attempt)
        if len(event.grades) != lease.group_size:
            raise InvariantError(f"{len(event.grades)} grades for the {lease.group_size} samples of {lease.lease_id}")
        self._move(lease, State.GRADED)
        lease.receipt = event.receipt
        lease.grades = event.grades

    def _filter(self, event: Filtered) -> None:
        self._settle(self[event.lease_id], State.FILTERED)
        self.filtered[event.reason] += 1

    def _claim(self, event: Claimed) -> None:
        if event.dispatch_id != self.next_dispatch_id():
            raise InvariantError(f"{event.dispatch_id} claimed where {self.next_dispatch_id()} is next")
        if len(set(event.leases)) != len(event.leases):
            raise InvariantError(f"{event.dispatch_id} claims a lease twice: {', '.join(event.leases)}")
        leases = [self[lease_id] for lease_id in event.leases]
        for lease in leases:
            self._check(lease, State.CLAIMED)
        for lease in leases:
            self._move(lease, State.CLAIMED)
            lease.dispatch_id = event.dispatch_id
        self._dispatches[event.dispatch_id] = event.leases
        self.dispatched += 1

    def _unclaim(self, event: Unclaimed) -> None:
        for lease in self._close_dispatch(event.dispatch_id):
            self._move(lease, State.GRADED)
            lease.dispatch_id = None

    def _commit(self, event: Committed) -> None:
        claimed = self._dispatches.get(event.dispatch_id, ())
        if event.leases != claimed:
            raise InvariantError(f"{event.dispatch_id} consumed {event.leases}, it had claimed {claimed}")
        for lease in self._close_dispatch(event.dispatch_id):
            self._settle(lease, State.COMMITTED)

    def _abort(self, event: Aborting) -> None:
        self._move(self[event.lease_id], State.ABORTING)

    def _confirm_abort(self, event: AbortConfirmed) -> None:
        self._move(self[event.lease_id], State.ABORTED)

    def _drop(self, event: Dropped) -> None:
        self._settle(self[event.lease_id], State.DROPPED)
        self.dropped[event.reason] += 1

    def _readmit(self, event: Readmitted) -> None:
        lease = self[event.lease_id]
        if event.attempt != lease.attempt + 1:
            raise InvariantError(f"{lease.lease_id} readmitted as attempt {event.attempt} after {lease.attempt}")
        self._move(lease, State.ADMITTED)
        lease.attempt = event.attempt
        lease.receipt, lease.grades = None, ()

    def _running_attempt(self, lease_id: LeaseId, attempt: int) -> None:
        if attempt != self[lease_id].attempt:
            raise InvariantError(f"attempt {attempt} of {lease_id}; attempt {self[lease_id].attempt} is running")

    def _close_dispatch(self, dispatch_id: DispatchId) -> tuple[Lease, ...]:
        leases = self.dispatch(dispatch_id)
        del self._dispatches[dispatch_id]
        return leases

    def _check(self, lease: Lease, state: State) -> None:
        if state not in TRANSITIONS[lease.state]:
            raise InvariantError(f"{lease.lease_id} cannot go from {lease.state} to {state}")

    def _move(self, lease: Lease, state: State) -> None:
        self._check(lease, state)
        self._states[lease.state] -= 1
        self._states[state] += 1
        lease.state = state

    def _settle(self, lease: Lease, state: State) -> None:
        self._move(lease, state)
        del self._open[lease.lease_id]
