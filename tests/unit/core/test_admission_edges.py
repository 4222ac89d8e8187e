"""The admission law where equality decides: the last batch, the batch that is full, and the groups beyond it."""

import pytest

from conductor.core.admission import Admission
from conductor.core.tally import Tally
from protocols.messages import LeaseId


def oversampling(*, version: int) -> Admission:
    """Return the law of a run of two steps that admits two groups more than a batch of four."""
    return Admission(slots=64, batch=4, max_age=0, version=version, target=8, extra=2)


@pytest.mark.parametrize(
    ("version", "claims", "accepted", "granted"),
    [
        (0, 0, 0, 6),  # the first batch is being filled
        (0, 1, 4, 0),  # it is full: what was beyond it is being given up
        (1, 1, 4, 6),  # the second one
        (1, 2, 8, 0),  # the last one is full
        (2, 2, 8, 0),  # and trained
    ],
)
def test_groups_beyond_a_batch_are_admitted_while_it_is_being_filled(
    version: int, claims: int, accepted: int, granted: int
) -> None:
    """I64: over-sampling that went on after the last batch would generate what nobody trains."""
    tally = Tally(claims=claims, claimed=4 * claims)
    assert oversampling(version=version).grants(tally, accepted=accepted, running=0) == granted


@pytest.mark.parametrize(("gap", "wanted"), [(1, 1), (3, 2)])
def test_a_gap_makes_the_batch_short_that_its_group_would_have_been_in(gap: int, wanted: int) -> None:
    """Law 1: groups 0 and 2 make a batch of two; a gap between them is this batch's, one behind them the next one's."""
    law, tally = Admission(slots=64, batch=2, max_age=1, target=100), Tally()
    tally.filter(LeaseId(f"L{gap}"), 2, "r", replaced=False)
    assert law.wanted(tally, [0, 2, 4]) == wanted
