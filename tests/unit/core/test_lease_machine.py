"""Laws 1 and 2 over every order of events that hypothesis can think of, kills and resumes included."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from conductor.core.lease import RUNNING, Lease, State
from conductor.core.leases import LeaseTable
from protocols.errors import InvariantError
from protocols.grading import Grade, GradeFault
from protocols.inference import Segment
from protocols.ledger import (
    AbortConfirmed,
    Aborting,
    Admitted,
    Checkpointed,
    Claimed,
    Committed,
    Compacted,
    Dropped,
    EpochClosed,
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
from protocols.messages import LeaseId, PayloadRef, WeightVersion
from protocols.prompts import Prompt, SourceState, TextPrompt
from protocols.rollouts import GroupReceipt, SampleReceipt
from protocols.tracking import StepRecord

PICK = st.integers(0, 10**6)


def receipt_of(lease_id: LeaseId, attempt: int, samples: int, version: int = 0) -> GroupReceipt:
    ref = PayloadRef(owner=f"policy.1/{lease_id}/{attempt}/", key="group")
    segments = (Segment(version=WeightVersion(version), count=1),)
    sample = SampleReceipt(tokens=1, segments=segments, finish="stop", preview="")
    return GroupReceipt(lease_id=lease_id, attempt=attempt, prompt_tokens=1, payload=ref, samples=(sample,) * samples)


class Leases(RuleBasedStateMachine):
    """A table, its record, and a second opinion on what was trained."""

    def __init__(self) -> None:
        super().__init__()
        self.table = LeaseTable()
        self.record: list[LedgerEvent] = []
        self.seen: list[tuple[int, Compacted]] = []
        self.version = 0
        self.trained: list[tuple[int, tuple[LeaseId, ...]]] = []  # version after the step, its leases
        self.begun: set[int] = {0}
        self.finished: dict[LeaseId, tuple[int, int]] = {}  # attempt, its newest weights: graded and not given up
        self.kept: list[int] = [0]

    def write(self, event: LedgerEvent) -> None:
        self.table.apply(event)
        match event:
            case Graded(lease_id=lease_id, receipt=receipt):
                newest = max(segment.version for sample in receipt.samples for segment in sample.segments)
                self.finished[lease_id] = (receipt.attempt, newest)
            case Aborting(lease_id=lease_id) | Filtered(lease_id=lease_id) | Readmitted(lease_id=lease_id):
                self.finished.pop(lease_id, None)
            case Dropped(lease_id=lease_id):
                self.finished.pop(lease_id, None)
            case Committed(leases=leases):
                for lease_id in leases:
                    del self.finished[lease_id]
            case Resumed(version=version):
                self.finished = {name: made for name, made in self.finished.items() if made[1] <= version}
            case _:
                pass
        self.record.append(event)
        self.seen.append((len(self.record), self.table.compacted()))

    def refuse(self, event: LedgerEvent) -> None:
        before = self.table.compacted()
        with pytest.raises(InvariantError):
            self.table.apply(event)
        assert self.table.compacted() == before

    def pick(self, number: int, *states: State) -> Lease | None:
        found = [lease for lease in self.table if lease.state in states]
        return found[number % len(found)] if found else None

    @initialize()
    def start(self) -> None:
        source = SourceState(position=0, seed=0)
        self.write(RunStarted(run_id="r", job={}, version=WeightVersion(0), prompts=source, fingerprint="f"))

    @rule(size=st.integers(1, 3), epoch=st.integers(0, 2))
    def admit(self, size: int, epoch: int) -> None:
        lease_id = self.table.next_lease_id()
        prompt = Prompt(position=int(lease_id[1:]), epoch=epoch, content=TextPrompt(text="p"))
        self.write(Admitted(lease_id=lease_id, prompt=prompt, group_size=size))

    @rule(number=PICK)
    def generate(self, number: int) -> None:
        if lease := self.pick(number, State.ADMITTED):
            self.write(Generating(lease_id=lease.lease_id, attempt=lease.attempt))

    @rule(number=PICK, faults=st.integers(0, 1))
    def grade(self, number: int, faults: int) -> None:
        if lease := self.pick(number, State.GENERATING):
            receipt = receipt_of(lease.lease_id, lease.attempt, lease.group_size, self.version)
            self.table.deliver(receipt)
            fault = GradeFault(kind="raised", detail="")
            grades = ((fault,) * faults + (Grade(reward=1.0),) * lease.group_size)[: lease.group_size]
            self.write(Graded(lease_id=lease.lease_id, receipt=receipt, grades=grades))

    @rule(number=PICK)
    def a_late_reply(self, number: int) -> None:
        """I42: the result of an attempt that was given up lands after all."""
        lease = self.pick(number, *State)
        if lease is not None and lease.attempt:
            late = receipt_of(lease.lease_id, lease.attempt - 1, lease.group_size)
            with pytest.raises(InvariantError):
                self.table.deliver(late)
            self.refuse(Graded(lease_id=lease.lease_id, receipt=late, grades=(Grade(reward=1.0),) * lease.group_size))

    @rule(number=PICK)
    def a_result_that_lands_during_its_abort(self, number: int) -> None:
        if lease := self.pick(number, State.ABORTING, State.ABORTED):
            with pytest.raises(InvariantError):
                self.table.deliver(receipt_of(lease.lease_id, lease.attempt, lease.group_size))

    @rule(number=PICK, replaced=st.booleans())
    def filter(self, number: int, replaced: bool) -> None:
        if lease := self.pick(number, State.GRADED):
            self.write(Filtered(lease_id=lease.lease_id, reason="equal_rewards", replaced=replaced))

    @rule(size=st.integers(1, 3))
    def claim(self, size: int) -> None:
        graded = self.table.in_state(State.GRADED)[:size]
        if graded and not self.table.open_dispatches():
            leases = tuple(lease.lease_id for lease in graded)
            dispatch_id = self.table.next_dispatch_id()
            self.write(Claimed(dispatch_id=dispatch_id, version=WeightVersion(self.version), leases=leases))

    @rule()
    @precondition(lambda self: self.table.open_dispatches())
    def commit(self) -> None:
        (dispatch_id,) = self.table.open_dispatches()
        leases = tuple(lease.lease_id for lease in self.table.dispatch(dispatch_id))
        event = Committed(dispatch_id=dispatch_id, version=WeightVersion(self.version + 1), leases=leases)
        self.write(event)
        self.version += 1
        self.trained.append((self.version, leases))
        self.refuse(event)  # a reply that comes twice

    @rule()
    @precondition(lambda self: self.table.open_dispatches())
    def unclaim(self) -> None:
        (dispatch_id,) = self.table.open_dispatches()
        self.write(Unclaimed(dispatch_id=dispatch_id))
        self.refuse(Unclaimed(dispatch_id=dispatch_id))

    @rule(number=PICK)
    def abort(self, number: int) -> None:
        if lease := self.pick(number, State.ADMITTED, State.GENERATING, State.GRADED):
            self.write(Aborting(lease_id=lease.lease_id, reason="r"))
            self.refuse(Aborting(lease_id=lease.lease_id, reason="r"))

    @rule(number=PICK)
    def confirm(self, number: int) -> None:
        if lease := self.pick(number, State.ABORTING):
            self.write(AbortConfirmed(lease_id=lease.lease_id))

    @rule(number=PICK)
    def readmit(self, number: int) -> None:
        if lease := self.pick(number, State.ABORTED, State.REOPENED):
            self.write(Readmitted(lease_id=lease.lease_id, attempt=lease.attempt + 1))

    @rule(number=PICK)
    def restore(self, number: int) -> None:
        """What was finished is graded again; what was given up, or made by weights that are gone, never."""
        if lease := self.pick(number, *State):
            finished = self.finished.get(lease.lease_id, (-1, 0))[0] == lease.attempt
            if lease.state is State.REOPENED and finished:
                self.write(Restored(lease_id=lease.lease_id))
                assert lease.receipt == receipt_of(
                    lease.lease_id, lease.attempt, lease.group_size, self.finished[lease.lease_id][1]
                )
            else:
                self.refuse(Restored(lease_id=lease.lease_id))

    @rule(number=PICK)
    def drop(self, number: int) -> None:
        if lease := self.pick(number, State.ABORTED, State.REOPENED):
            self.write(Dropped(lease_id=lease.lease_id, reason="bad_prompt"))

    @rule()
    def close_epoch(self) -> None:
        self.write(EpochClosed(epoch=self.table.tally.epoch))

    @rule()
    @precondition(lambda self: self.version not in self.begun and not self.table.open_dispatches())
    def close_step(self) -> None:
        record = StepRecord(step=self.version, metrics={})
        self.write(Stepped(record=record, seconds=1.0))
        self.begun = {begun for begun in self.begun if begun in self.kept} | {self.version}

    @rule(keep=st.integers(1, 2))
    @precondition(lambda self: self.version in self.begun)
    def complete_checkpoint(self, keep: int) -> None:
        self.kept = [*(kept for kept in self.kept if kept != self.version), self.version][-keep:]
        self.write(Checkpointed(version=WeightVersion(self.version), kept=tuple(map(WeightVersion, self.kept))))
        self.begun = set(self.kept)

    @rule(number=PICK)
    def kill_and_resume(self, number: int) -> None:
        """A kill loses nothing that was written; the resume goes back to any checkpoint that may be there."""
        begun = sorted(self.begun)
        self.version = begun[number % len(begun)]
        self.write(Resumed(version=WeightVersion(self.version)))
        self.begun = {other for other in self.begun if other <= self.version}
        self.kept = sorted({*(kept for kept in self.kept if kept <= self.version), self.version})
        self.trained = [step for step in self.trained if step[0] <= self.version]

    @rule()
    def compact(self) -> None:
        """The record is replaced by what sums it up, and goes on from there."""
        self.record[1:] = [self.table.compacted()]
        self.seen = [(len(self.record), self.table.compacted())]
        self.table = replayed(self.record)

    @invariant()
    def laws_1_and_2(self) -> None:
        groups, samples = self.table.accounts, self.table.sample_accounts
        assert groups.balanced
        assert samples.balanced
        assert groups.open == len(list(self.table))
        counted = Counter(lease_id for _, leases in self.trained for lease_id in leases)
        assert set(counted.values()) <= {1}
        assert groups.committed == len(counted)
        assert not counted.keys() & {lease.lease_id for lease in self.table}
        assert self.table.running == sum(lease.state in RUNNING for lease in self.table)

    def teardown(self) -> None:
        """A replay of any part of the record is the table of that moment."""
        table, expected = LeaseTable(), dict(self.seen)
        for number, event in enumerate(self.record, start=1):
            table.apply(event)
            if number in expected:
                assert table.compacted() == expected[number]


def replayed(record: list[LedgerEvent]) -> LeaseTable:
    table = LeaseTable()
    for event in record:
        table.apply(event)
    return table


TestLeases = Leases.TestCase
TestLeases.settings = settings(max_examples=150, stateful_step_count=60)
