"""The lease table where one step further would be wrong: identities of attempts, tries, and what is unclaimed."""

import msgspec
import pytest

from conductor.core.lease import State
from protocols.errors import InvariantError
from protocols.grading import Grade
from protocols.inference import Segment
from protocols.ledger import AbortConfirmed, Aborting, Checkpointed, Generating, Graded, Readmitted, Unclaimed
from protocols.messages import DispatchId, LeaseId, WeightVersion
from protocols.rollouts import SampleReceipt
from tests.unit.core.test_leases import (
    D0,
    L0,
    L1,
    PATH_TO,
    admitted,
    claimed,
    committed,
    graded,
    receipt,
    started,
    stepped,
    table_after,
)


def test_a_record_of_another_attempt_is_refused() -> None:
    """I42: what an earlier attempt did is no event of the one that runs."""
    table = table_after(admitted(L0))
    with pytest.raises(InvariantError, match="attempt 1 of L0; attempt 0 is running"):
        table.apply(Generating(lease_id=L0, attempt=1))
    table.apply(Generating(lease_id=L0, attempt=0))
    with pytest.raises(InvariantError, match="attempt 1 of L0; attempt 0 is running"):
        table.apply(graded(L0, attempt=1))


def test_an_attempt_that_was_ended_through_no_failure_is_no_try() -> None:
    """A group that is begun anew for its age again and again must not run out of attempts."""
    table = table_after(*PATH_TO[State.ABORTED])
    for attempt in (1, 2, 3):
        table.apply(Readmitted(lease_id=L0, attempt=attempt, failed=False))
        assert (table[L0].attempt, table[L0].tries) == (attempt, 1)
        table.apply(Aborting(lease_id=L0, reason="over_age"))
        table.apply(AbortConfirmed(lease_id=L0))
    table.apply(Readmitted(lease_id=L0, attempt=4))
    assert table[L0].tries == 2


def test_a_claim_that_is_taken_back_leaves_no_trace_in_the_tally() -> None:
    """Law 1: the step did not happen, so the batch that it was short of is not forgiven."""
    table = table_after(*PATH_TO[State.CLAIMED])
    assert table.tally.forgiven(4) == 3
    table.apply(Unclaimed(dispatch_id=D0))
    assert table.tally.forgiven(4) == 0
    assert table.tally.claimed == 0


def test_unclaimed_are_the_open_leases_of_no_batch() -> None:
    table = table_after(*PATH_TO[State.GRADED], admitted(L1), admitted(LeaseId("L2")))
    assert list(table.unclaimed) == [0, 1, 2]
    table.apply(claimed(L0))
    assert list(table.unclaimed) == [1, 2]


def test_what_was_never_admitted_is_told_from_what_is_settled() -> None:
    table = table_after(*PATH_TO[State.CLAIMED])
    with pytest.raises(InvariantError, match="L1 was never admitted"):
        table[L1]
    with pytest.raises(InvariantError, match="D1 is no open dispatch"):
        table.dispatch(DispatchId("D1"))


def test_what_the_oldest_checkpoint_cannot_reopen_is_forgotten() -> None:
    """I73: settled leases of a long run must not stay in memory."""
    table = table_after(started(), *PATH_TO[State.CLAIMED], committed(L0), stepped(1), admitted(L1))
    assert [lease.lease_id for lease in table.settlements.recent] == [L0]
    table.apply(Checkpointed(version=WeightVersion(1), kept=(WeightVersion(0), WeightVersion(1))))
    assert [lease.lease_id for lease in table.settlements.recent] == [L0]
    table.apply(Checkpointed(version=WeightVersion(1), kept=(WeightVersion(1),)))
    assert not table.settlements.recent


def test_a_replay_knows_what_a_group_holds_and_how_old_it_is() -> None:
    """Nothing was delivered to it: a resume has the receipt, and with it the age, from the record alone."""
    sample = SampleReceipt(tokens=1, segments=(Segment(version=WeightVersion(3), count=1),), finish="stop", preview="")
    made = msgspec.structs.replace(receipt(L0), samples=(sample, sample))
    begun = Generating(lease_id=L0, attempt=0, version=WeightVersion(2))
    table = table_after(admitted(L0), begun, Graded(lease_id=L0, receipt=made, grades=(Grade(reward=0.0),) * 2))
    assert table[L0].finished_receipt == made
    assert table[L0].version == 3
