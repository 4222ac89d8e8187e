"""The lease table: who owns each prompt group. Streams carry ids; this table is the truth.

The table changes only by ledger events (``apply``), so a replay of the ledger rebuilds it. It holds what is
open, and of what is settled only what a resume could still reopen.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from conductor.core.lease import RUNNING, Lease, State
from conductor.core.registry import CheckpointRegistry
from conductor.core.settlements import Settlements
from conductor.core.tally import Tally
from conductor.result import Accounts, SampleAccounts
from protocols.errors import InvariantError
from protocols.incidents import Incident, Scaled
from protocols.ledger import (
    AbortConfirmed,
    Aborting,
    Admitted,
    CheckpointBegun,
    Checkpointed,
    CheckpointsReleased,
    Claimed,
    Committed,
    Compacted,
    Dropped,
    EpochClosed,
    Evaluated,
    Filtered,
    Generating,
    Graded,
    LedgerEvent,
    Readmitted,
    Restored,
    Resumed,
    RunStarted,
    Stepped,
    Unclaimed,
)
from protocols.messages import DispatchId, LeaseId, WeightVersion, lease_number
from protocols.rollouts import GroupReceipt


class LeaseTable:
    """All open leases and the accounts of all settled ones.

    Attributes:
        tally: What the run has come to.
        position: Of the prompt after the last one admitted; None: none was.
        dispatched: Batches claimed so far, those of abandoned lives included: an id is never used again.
        settlements: What is settled, and the steps that a resume may go back to.
        checkpoints: Which checkpoints there are, and what they are worth.
    """

    def __init__(self) -> None:
        self._open: dict[LeaseId, Lease] = {}
        self._dispatches: dict[DispatchId, Claimed] = {}
        self._states: Counter[State] = Counter()
        self._admitted = 0
        self._samples = 0
        self.tally = Tally()
        self.position: int | None = None
        self.dispatched = 0
        self.settlements = Settlements()
        self.checkpoints = CheckpointRegistry()
        self._transitions: Mapping[type[LedgerEvent], Callable[[Any], None]] = {
            RunStarted: self._start,
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
            Restored: self._restore,
            Dropped: self._drop,
            EpochClosed: lambda _: self.tally.close_epoch(),
            Stepped: self._close_step,
            Evaluated: self.checkpoints.apply,
            CheckpointBegun: self._begin_checkpoint,
            Incident: lambda _: None,
            Scaled: lambda _: None,
            Checkpointed: self._complete_checkpoint,
            CheckpointsReleased: self.checkpoints.apply,
            Resumed: self._resume,
            Compacted: self._expand,
        }

    def __getitem__(self, lease_id: LeaseId) -> Lease:
        """Return an open lease.

        Raises:
            InvariantError: It is settled, or there never was one.
        """
        try:
            return self._open[lease_id]
        except KeyError:
            known = lease_number(lease_id) < self._admitted
            raise InvariantError(f"{lease_id} {'is settled' if known else 'was never admitted'}") from None

    def __contains__(self, lease_id: LeaseId) -> bool:
        """Return whether a lease is open."""
        return lease_id in self._open

    def __iter__(self) -> Iterator[Lease]:
        """Iterate over the open leases in the order of admission."""
        return iter(tuple(self._open.values()))

    @property
    def running(self) -> int:
        """Groups lent out that are not graded yet."""
        return sum(self._states[state] for state in RUNNING)

    @property
    def unclaimed(self) -> Iterator[int]:
        """Numbers of the open leases that no batch has claimed, in the order of admission."""
        return (lease_number(lease.lease_id) for lease in self._open.values() if lease.state is not State.CLAIMED)

    @property
    def accepted(self) -> int:
        """Groups that are graded and kept, trained ones included."""
        return self._states[State.GRADED] + self._states[State.CLAIMED] + self.tally.committed

    @property
    def accounts(self) -> Accounts:
        """Where every admitted group is."""
        return Accounts(
            admitted=self._admitted,
            committed=self.tally.committed,
            filtered=self.tally.filtered.total(),
            dropped=self.tally.dropped.total(),
            open=len(self._open),
        )

    @property
    def sample_accounts(self) -> SampleAccounts:
        """Where every sample of every admitted group is."""
        return SampleAccounts(
            admitted=self._samples,
            trained=self.tally.trained_samples,
            masked=self.tally.masked_samples,
            filtered=self.tally.filtered_samples,
            dropped=self.tally.dropped_samples,
            open=sum(lease.group_size for lease in self._open.values()),
        )

    @property
    def reopened(self) -> Lease | None:
        """The reopened lease that is to be admitted next; None: there is none."""
        return next(iter(self.in_state(State.REOPENED)), None) if self._states[State.REOPENED] else None

    def count(self, state: State) -> int:
        """Return how many open leases are in ``state``."""
        return self._states[state]

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
        return tuple(self[lease_id] for lease_id in self._dispatch(dispatch_id).leases)

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
            stamped = sum([segment.count for segment in sample.segments])
            if stamped != sample.tokens:
                raise InvariantError(
                    f"sample {index} of {receipt.lease_id} has {sample.tokens} tokens, and versions for {stamped}"
                )
        lease.finish(receipt)

    def apply(self, event: LedgerEvent) -> None:
        """Make the transition that ``event`` records, whole or not at all.

        Raises:
            InvariantError: The transition is not in the table, or its identities do not fit.
        """
        self._transitions[type(event)](event)

    def _start(self, event: RunStarted) -> None:
        if self._admitted:
            raise InvariantError("the record of a run begins a second time")
        if event.resumable:
            self.settlements.begin(event.version, self.tally, admitted=self._admitted)
        self.checkpoints.apply(event)

    def _admit(self, event: Admitted) -> None:
        lease_id, prompt = event.lease_id, event.prompt
        if lease_id != self.next_lease_id():
            raise InvariantError(f"{lease_id} admitted where {self.next_lease_id()} is next")
        self._open[lease_id] = Lease(lease_id=lease_id, prompt=prompt, group_size=event.group_size)
        self._states[State.ADMITTED] += 1
        self._admitted += 1
        self._samples += event.group_size
        self.position = prompt.position + 1
        self.tally.epoch = prompt.epoch

    def _generate(self, event: Generating) -> None:
        lease = self._attempt(event.lease_id, event.attempt)
        self._move(lease, State.GENERATING)
        lease.version = event.version

    def _grade(self, event: Graded) -> None:
        lease = self._attempt(event.lease_id, event.receipt.attempt)
        if len(event.grades) != lease.group_size:
            raise InvariantError(f"{len(event.grades)} grades for the {lease.group_size} samples of {lease.lease_id}")
        self._move(lease, State.GRADED, only_from=State.GENERATING)
        if lease.receipt is not event.receipt:  # else it was delivered
            lease.finish(event.receipt)
        lease.grades = event.grades

    def _filter(self, event: Filtered) -> None:
        lease = self[event.lease_id]
        self._settle(lease, State.FILTERED)
        self.tally.filter(lease.lease_id, lease.group_size, event.reason, replaced=event.replaced)

    def _claim(self, event: Claimed) -> None:
        if event.dispatch_id != self.next_dispatch_id():
            raise InvariantError(f"{event.dispatch_id} claimed where {self.next_dispatch_id()} is next")
        if len(set(event.leases)) != len(event.leases):
            raise InvariantError(f"{event.dispatch_id} claims a lease twice: {', '.join(event.leases)}")
        leases = [self[lease_id] for lease_id in event.leases]
        for lease in leases:
            lease.check(State.CLAIMED)
        for lease in leases:
            self._put(lease, State.CLAIMED)
        self._dispatches[event.dispatch_id] = event
        self.dispatched += 1
        self.tally.claim(len(leases), event.missing)

    def _unclaim(self, event: Unclaimed) -> None:
        leases = self._close_dispatch(event.dispatch_id)
        for lease in leases:
            self._move(lease, State.GRADED)
        self.tally.unclaim(len(leases))

    def _commit(self, event: Committed) -> None:
        claim = self._dispatch(event.dispatch_id)
        if event.leases != claim.leases:
            raise InvariantError(f"{event.dispatch_id} consumed {event.leases}, it had claimed {claim.leases}")
        if event.version != claim.version + 1:
            raise InvariantError(f"{event.dispatch_id} made v{event.version} out of v{claim.version}")
        for lease in self._close_dispatch(event.dispatch_id):
            self.tally.commit(lease.grades)
            self._settle(lease, State.COMMITTED)

    def _abort(self, event: Aborting) -> None:
        self._move(self[event.lease_id], State.ABORTING)

    def _confirm_abort(self, event: AbortConfirmed) -> None:
        self._move(self[event.lease_id], State.ABORTED)

    def _drop(self, event: Dropped) -> None:
        lease = self[event.lease_id]
        self._settle(lease, State.DROPPED)
        self.tally.drop(lease.group_size, event.reason)

    def _readmit(self, event: Readmitted) -> None:
        lease = self[event.lease_id]
        if event.attempt != lease.attempt + 1:
            raise InvariantError(f"{lease.lease_id} readmitted as attempt {event.attempt} after {lease.attempt}")
        reopened = lease.state is State.REOPENED
        self._move(lease, State.ADMITTED)
        lease.attempt = event.attempt
        lease.receipt, lease.grades = None, ()
        if not (reopened or event.failed):
            lease.first_attempt += 1
        if reopened:
            lease.first_attempt = event.attempt
            self.tally.epoch = lease.prompt.epoch

    def _restore(self, event: Restored) -> None:
        lease = self[event.lease_id]
        if not lease.grades:
            raise InvariantError(f"{lease.lease_id} is to be graded as it was, and nothing of it was kept")
        self._move(lease, State.GRADED, only_from=State.REOPENED)
        lease.first_attempt = lease.attempt
        self.tally.epoch = lease.prompt.epoch

    def _close_step(self, event: Stepped) -> None:
        if self._dispatches:
            raise InvariantError(f"step {event.record.step} was closed while {', '.join(self._dispatches)} was lent")
        self.settlements.step(WeightVersion(event.record.step), self.tally, admitted=self._admitted)

    def _begin_checkpoint(self, event: CheckpointBegun) -> None:
        self.settlements.write(event.version)
        self.checkpoints.apply(event)

    def _complete_checkpoint(self, event: Checkpointed) -> None:
        self.settlements.complete(event.version, event.kept)
        self.checkpoints.apply(event)

    def _resume(self, event: Resumed) -> None:
        self.tally, taken_back = self.settlements.take_back(event.version)
        self.checkpoints.apply(event)
        leases = sorted([*self._open.values(), *taken_back], key=lambda lease: lease_number(lease.lease_id))
        for lease in leases:
            if not lease.finished_by(event.version):
                lease.receipt, lease.grades = None, ()
            lease.state = State.REOPENED
        self._open = {lease.lease_id: lease for lease in leases}
        self._states = Counter({State.REOPENED: len(leases)})
        self._dispatches.clear()

    def _expand(self, event: Compacted) -> None:
        if self._admitted:
            raise InvariantError("a summary of the record stands behind what it sums up")
        self._admitted, self._samples, self.position = event.admitted, event.samples, event.position
        self.dispatched = event.dispatched
        self.tally = Tally.of(event.tally)
        self._open = {record.lease_id: Lease.of(record) for record in event.open}
        self._states = Counter(lease.state for lease in self._open.values())
        self._dispatches = {claim.dispatch_id: claim for claim in event.dispatches}
        self.settlements.restore(event.settled, map(Lease.of, event.recent), event.cuts)
        self.checkpoints.apply(event)

    def compacted(self) -> Compacted:
        """Return one event that makes an empty table equal to this one."""
        return Compacted(
            admitted=self._admitted,
            samples=self._samples,
            position=self.position,
            dispatched=self.dispatched,
            settled=self.settlements.settled,
            tally=self.tally.message(),
            open=tuple(lease.record() for lease in self._open.values()),
            recent=tuple(lease.record() for lease in self.settlements.recent),
            dispatches=tuple(self._dispatches.values()),
            cuts=self.settlements.messages(),
            held=self.checkpoints.held,
        )

    def _attempt(self, lease_id: LeaseId, attempt: int) -> Lease:
        lease = self[lease_id]
        if attempt != lease.attempt:
            raise InvariantError(f"attempt {attempt} of {lease_id}; attempt {lease.attempt} is running")
        return lease

    def _dispatch(self, dispatch_id: DispatchId) -> Claimed:
        if dispatch_id not in self._dispatches:
            raise InvariantError(f"{dispatch_id} is no open dispatch")
        return self._dispatches[dispatch_id]

    def _close_dispatch(self, dispatch_id: DispatchId) -> tuple[Lease, ...]:
        leases = self.dispatch(dispatch_id)
        del self._dispatches[dispatch_id]
        return leases

    def _move(self, lease: Lease, state: State, *, only_from: State | None = None) -> None:
        lease.check(state, only_from=only_from)
        self._put(lease, state)

    def _put(self, lease: Lease, state: State) -> None:
        states = self._states
        states[lease.state] -= 1
        states[state] += 1
        lease.state = state

    def _settle(self, lease: Lease, state: State) -> None:
        lease.check(state)
        self._states[lease.state] -= 1
        lease.state = state
        del self._open[lease.lease_id]
        self.settlements.add(lease)
