"""The lease table: one transition table, exact accounts, nothing trained twice."""

import itertools

import msgspec
import pytest

from conductor.core.lease import SETTLED, TRANSITIONS, State
from conductor.core.leases import LeaseTable
from conductor.core.registry import CheckpointRegistry
from protocols.errors import InvariantError
from protocols.grading import Grade
from protocols.inference import Segment
from protocols.ledger import (
    AbortConfirmed,
    Aborting,
    Admitted,
    CheckpointBegun,
    Checkpointed,
    Claimed,
    Committed,
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
from protocols.messages import DispatchId, LeaseId, PayloadRef, WeightVersion
from protocols.prompts import Prompt, SourceState, TextPrompt
from protocols.rollouts import GroupReceipt, SampleReceipt
from protocols.tracking import StepRecord

L0, L1 = LeaseId("L0"), LeaseId("L1")
D0 = DispatchId("D0")
SAMPLE = SampleReceipt(tokens=1, segments=(Segment(version=WeightVersion(0), count=1),), finish="stop", preview="")


def admitted(lease_id: LeaseId) -> Admitted:
    return Admitted(lease_id=lease_id, prompt=Prompt(position=0, content=TextPrompt(text="p")), group_size=2)


def receipt(lease_id: LeaseId, attempt: int = 0, samples: int = 2) -> GroupReceipt:
    ref = PayloadRef(owner=f"policy.1/{lease_id}/{attempt}/", key="group")
    return GroupReceipt(lease_id=lease_id, attempt=attempt, prompt_tokens=1, payload=ref, samples=(SAMPLE,) * samples)


def graded(lease_id: LeaseId, attempt: int = 0) -> Graded:
    return Graded(lease_id=lease_id, receipt=receipt(lease_id, attempt), grades=(Grade(reward=0.0),) * 2)


def claimed(*leases: LeaseId, dispatch: DispatchId = D0) -> Claimed:
    return Claimed(dispatch_id=dispatch, version=WeightVersion(0), leases=leases)


def committed(*leases: LeaseId, dispatch: DispatchId = D0) -> Committed:
    return Committed(dispatch_id=dispatch, version=WeightVersion(1), leases=leases)


def started(*, resumable: bool = True) -> RunStarted:
    return RunStarted(
        run_id="r",
        job={},
        version=WeightVersion(0),
        prompts=SourceState(position=0, seed=0),
        fingerprint="f",
        resumable=resumable,
    )


def stepped(step: int) -> Stepped:
    return Stepped(record=StepRecord(step=step, metrics={}), seconds=1.0)


PATH_TO: dict[State, tuple[LedgerEvent, ...]] = {
    State.ADMITTED: (admitted(L0),),
    State.GENERATING: (admitted(L0), Generating(lease_id=L0, attempt=0)),
    State.GRADED: (admitted(L0), Generating(lease_id=L0, attempt=0), graded(L0)),
    State.CLAIMED: (admitted(L0), Generating(lease_id=L0, attempt=0), graded(L0), claimed(L0)),
    State.ABORTING: (admitted(L0), Aborting(lease_id=L0, reason="r")),
    State.ABORTED: (admitted(L0), Aborting(lease_id=L0, reason="r"), AbortConfirmed(lease_id=L0)),
    State.REOPENED: (
        started(),
        admitted(L0),
        Generating(lease_id=L0, attempt=0),
        graded(L0),
        Resumed(version=WeightVersion(0)),
    ),
}

STEP_TO: dict[State, LedgerEvent] = {
    State.GENERATING: Generating(lease_id=L0, attempt=0),
    State.GRADED: graded(L0),
    State.CLAIMED: claimed(L0),
    State.COMMITTED: committed(L0),
    State.FILTERED: Filtered(lease_id=L0, reason="r"),
    State.ABORTING: Aborting(lease_id=L0, reason="r"),
    State.ABORTED: AbortConfirmed(lease_id=L0),
    State.ADMITTED: Readmitted(lease_id=L0, attempt=1),
    State.DROPPED: Dropped(lease_id=L0, reason="r"),
}


def table_after(*events: LedgerEvent) -> LeaseTable:
    table = LeaseTable()
    for event in events:
        table.apply(event)
    return table


@pytest.mark.parametrize(("state", "target"), list(itertools.product(PATH_TO, STEP_TO)))
def test_exactly_the_transitions_of_the_table_are_possible(state: State, target: State) -> None:
    """DESIGN.md, leases: anything outside the one transition table is an InvariantError."""
    table = table_after(*PATH_TO[state])
    event = STEP_TO[target]
    if state is State.CLAIMED and target is State.GRADED:
        event = Unclaimed(dispatch_id=D0)
    if state is State.REOPENED and target is State.GRADED:
        event = Restored(lease_id=L0)
    if target in TRANSITIONS[state]:
        table.apply(event)
        assert target in SETTLED or table[L0].state is target
    else:
        before = table.accounts
        with pytest.raises(InvariantError):
            table.apply(event)
        assert table.accounts == before
        assert table[L0].state is state


def test_a_committed_lease_cannot_be_committed_again() -> None:
    """Law 2: no group is trained twice."""
    table = table_after(*PATH_TO[State.CLAIMED], committed(L0))
    with pytest.raises(InvariantError, match="D0"):
        table.apply(committed(L0))
    with pytest.raises(InvariantError, match="L0 is settled"):
        table.apply(claimed(L0, dispatch=DispatchId("D1")))


def test_a_claim_changes_nothing_until_all_of_it_succeeds() -> None:
    """DESIGN.md: one lease of the batch is not graded, so none is claimed."""
    table = table_after(*PATH_TO[State.GRADED], admitted(L1))
    with pytest.raises(InvariantError, match="L1"):
        table.apply(claimed(L0, L1))
    assert table[L0].state is State.GRADED
    assert table.open_dispatches() == ()


def test_a_claim_with_a_lease_twice_is_refused() -> None:
    """Law 2, inside one batch."""
    table = table_after(*PATH_TO[State.GRADED])
    with pytest.raises(InvariantError, match="twice"):
        table.apply(claimed(L0, L0))


def test_a_step_commits_exactly_what_it_had_claimed() -> None:
    """A trainer that reports other leases than it was lent is not believed."""
    table = table_after(*PATH_TO[State.CLAIMED])
    with pytest.raises(InvariantError, match="consumed"):
        table.apply(committed(L0, L1))
    assert table[L0].state is State.CLAIMED


def test_the_receipt_of_an_earlier_attempt_is_refused() -> None:
    """I42: a retry counted twice; a late reply is not the running attempt's."""
    table = table_after(*PATH_TO[State.ABORTED], Readmitted(lease_id=L0, attempt=1), Generating(lease_id=L0, attempt=1))
    with pytest.raises(InvariantError, match="attempt 0"):
        table.deliver(receipt(L0, attempt=0))
    table.deliver(receipt(L0, attempt=1))
    assert table[L0].receipt == receipt(L0, attempt=1)


def test_a_receipt_without_all_samples_is_refused() -> None:
    """I01: a group three samples short must not wait for ever, it is an error of the executor."""
    table = table_after(*PATH_TO[State.GENERATING])
    with pytest.raises(InvariantError, match="1 samples"):
        table.deliver(receipt(L0, samples=1))


def test_a_token_without_a_version_is_refused() -> None:
    """I31, verl PR#7568: samples came without a stamp, and the age metric was wrong."""
    table = LeaseTable()
    for event in PATH_TO[State.GENERATING]:
        table.apply(event)
    unstamped = msgspec.structs.replace(SAMPLE, tokens=2)
    late = msgspec.structs.replace(receipt(L0), samples=(SAMPLE, unstamped))
    with pytest.raises(InvariantError, match="sample 1 of L0 has 2 tokens, and versions for 1"):
        table.deliver(late)


def test_a_batch_is_bound_to_the_version_that_it_was_lent_at() -> None:
    """DESIGN.md, exact bindings: a step out of another version is no step of this batch."""
    table = table_after(*PATH_TO[State.CLAIMED])
    with pytest.raises(InvariantError, match="made v7 out of v0"):
        table.apply(msgspec.structs.replace(committed(L0), version=WeightVersion(7)))
    assert table[L0].state is State.CLAIMED


def test_what_was_settled_after_a_checkpoint_is_reopened_in_order_and_what_was_settled_before_is_final() -> None:
    """Issue C: later commits are reopened, open leases readmitted; the numbers are those of the checkpoint."""
    table = table_after(started(), *PATH_TO[State.CLAIMED], committed(L0), stepped(1))
    then = table.tally.copy()
    later: tuple[LedgerEvent, ...] = (
        admitted(L1),
        Generating(lease_id=L1, attempt=0),
        Checkpointed(version=WeightVersion(1), kept=(WeightVersion(1),)),
        graded(L1),
        claimed(L1, dispatch=DispatchId("D1")),
        Unclaimed(dispatch_id=DispatchId("D1")),
        Filtered(lease_id=L1, reason="r"),
        admitted(LeaseId("L2")),
        Resumed(version=WeightVersion(1)),
    )
    for event in later:
        table.apply(event)
    assert [(lease.lease_id, lease.state) for lease in table] == [("L1", State.REOPENED), ("L2", State.REOPENED)]
    assert table.tally == then
    assert (table.accounts.committed, table.accounts.open, table.running) == (1, 2, 0)
    assert table.next_dispatch_id() == "D2"


def test_a_life_that_was_killed_is_no_try_of_a_group() -> None:
    """Two hundred kills must not use up the attempts that a group has for transient failures."""
    table = table_after(*PATH_TO[State.REOPENED], Readmitted(lease_id=L0, attempt=1))
    assert (table[L0].attempt, table[L0].tries) == (1, 1)
    retried = (Aborting(lease_id=L0, reason="r"), AbortConfirmed(lease_id=L0), Readmitted(lease_id=L0, attempt=2))
    for event in retried:
        table.apply(event)
    assert (table[L0].attempt, table[L0].tries) == (2, 2)


def test_what_a_reopened_group_had_is_kept_only_for_its_restoring() -> None:
    """A reply of the life before, that comes after all, is nobody's; and restoring is no failure of the group."""
    table = table_after(*PATH_TO[State.REOPENED])
    with pytest.raises(InvariantError, match="cannot go from reopened to graded"):
        table.apply(graded(L0))
    table.apply(Restored(lease_id=L0))
    assert (table[L0].state, table[L0].tries, table.accepted) == (State.GRADED, 1, 1)
    with pytest.raises(InvariantError):
        table.apply(Restored(lease_id=L0))


def test_a_step_that_is_closed_while_a_batch_is_lent_is_refused() -> None:
    """Nobody could say whether its step belongs to the checkpoint."""
    table = table_after(started(), *PATH_TO[State.CLAIMED])
    with pytest.raises(InvariantError, match="D0"):
        table.apply(stepped(1))


def test_a_run_without_checkpoints_forgets_what_is_settled() -> None:
    """The table holds what is open, however long the run."""
    table = table_after(started(resumable=False), *PATH_TO[State.CLAIMED], committed(L0))
    assert not table.settlements.recent
    with pytest.raises(InvariantError, match="knows no checkpoint"):
        table.apply(Resumed(version=WeightVersion(0)))


def test_epochs_are_part_of_what_a_replay_rebuilds() -> None:
    """I52: the boundary of an epoch after a resume."""
    table = table_after(started(), *PATH_TO[State.CLAIMED], committed(L0))
    assert table.tally.epoch == 0
    table.apply(EpochClosed(epoch=0))
    assert (table.tally.epoch, table.tally.progress) == (None, 1)


def test_what_a_record_says_of_checkpoints_reaches_their_registry() -> None:
    """A resume goes back by the table and removes files by the registry: at odds they remove what is needed."""
    v1, v2 = WeightVersion(1), WeightVersion(2)
    table, alone = LeaseTable(), CheckpointRegistry()

    def both(*events: LedgerEvent) -> None:
        for event in events:
            table.apply(event)
            alone.apply(event)
            assert vars(table.checkpoints) == vars(alone), type(event).__name__

    both(started(), stepped(1), CheckpointBegun(version=v1))
    summed_up = table.compacted()
    both(stepped(2), Checkpointed(version=v1, kept=(v1,)), CheckpointBegun(version=v2), Resumed(version=v1))
    table, alone = LeaseTable(), CheckpointRegistry()
    both(started(), summed_up)
    assert alone.begun == v1


def test_a_step_whose_checkpoint_is_begun_is_remembered_while_steps_go_on() -> None:
    table = LeaseTable()
    for event in (started(), stepped(1), CheckpointBegun(version=WeightVersion(1)), stepped(2), stepped(3)):
        table.apply(event)
    table.apply(Checkpointed(version=WeightVersion(1), kept=(WeightVersion(1),)))
    assert tuple(table.settlements.cuts) == (1, 3)
