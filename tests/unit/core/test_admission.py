"""The admission law, against numbers worked by others and against itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.core.admission import Admission
from conductor.core.tally import Tally
from protocols.messages import LeaseId

NONE: list[int] = []


def admission(*, slots: int, batch: int, max_age: int, version: int = 0, target: int = 10**9) -> Admission:
    return Admission(slots=slots, batch=batch, max_age=max_age, version=version, target=target)


@pytest.mark.parametrize(
    ("slots", "batch", "max_age", "running", "expected"),
    [
        (10, 4, 2, 0, 10),
        (100, 32, 10, 0, 100),
        (1000, 32, 10, 0, 352),
        (5, 4, 2, 3, 2),
    ],
)
def test_capacity_of_worked_examples(slots: int, batch: int, max_age: int, running: int, expected: int) -> None:
    """AReaL tests/test_staleness_manager.py: capacity at version 0 (ORACLES.md, controller scenarios)."""
    assert admission(slots=slots, batch=batch, max_age=max_age).grants(Tally(), accepted=0, running=running) == expected


def test_max_age_zero_still_grants_a_batch() -> None:
    """I15, TRL PR#5650: staleness 0 multiplied the capacity away."""
    assert admission(slots=8, batch=4, max_age=0).grants(Tally(), accepted=0, running=0) == 4


def test_a_filtered_group_gives_its_slot_back() -> None:
    """SkyRL test_fully_async_trainer: a filtered group returns one slot."""
    law = admission(slots=8, batch=2, max_age=1)
    assert law.grants(Tally(), accepted=0, running=4) == 0
    assert law.grants(Tally(), accepted=0, running=3) == 1


def test_a_short_batch_counts_as_a_whole_one() -> None:
    """With 14 of 16 trained the next version must not be granted 18 groups: two would be over age."""
    law = admission(slots=64, batch=16, max_age=0, version=1)
    assert law.grants(Tally(claims=1, claimed=14), accepted=14, running=0) == 16


def test_a_filtered_group_that_is_not_replaced_counts_until_its_batch_is_claimed_and_after() -> None:
    """I64: the step is one group short; the version after it is granted a batch, and no group more."""
    law, tally = admission(slots=64, batch=4, max_age=0), Tally()
    tally.filter(LeaseId("L0"), 2, "r", replaced=True)
    assert (law.wanted(tally, NONE), law.grants(tally, accepted=0, running=3)) == (4, 1)
    tally.filter(LeaseId("L1"), 2, "r", replaced=False)
    assert (law.wanted(tally, NONE), law.grants(tally, accepted=0, running=3)) == (3, 0)
    tally.claim(3, missing=1)
    assert (law.wanted(tally, NONE), law.grants(tally, accepted=3, running=0)) == (4, 0)
    law.version = 1
    assert law.grants(tally, accepted=3, running=0) == 4


def test_what_is_filtered_for_good_beyond_a_batch_makes_the_next_one_short() -> None:
    """Else the window would grow by it, and with it the age of what is trained."""
    law, tally = admission(slots=64, batch=4, max_age=1), Tally()
    for number in (1, 2, 5, 6, 7):
        tally.filter(LeaseId(f"L{number}"), 2, "r", replaced=False)
    assert (law.wanted(tally, [0, 3, 4]), law.grants(tally, accepted=3, running=0)) == (2, 0)
    tally.claim(2, missing=2)
    assert (law.wanted(tally, [4]), law.grants(tally, accepted=3, running=0)) == (1, 0)


def test_a_batch_whose_step_did_not_happen_is_granted_again() -> None:
    """Law 1: what a short batch was short of is forgiven only if it is trained."""
    law, tally = admission(slots=64, batch=4, max_age=0), Tally()
    tally.claim(1)
    assert law.grants(tally, accepted=1, running=0) == 0
    tally.unclaim(1)
    assert law.grants(tally, accepted=0, running=0) == 4


def test_a_run_wants_more_until_its_last_batch_is_committed() -> None:
    """I56: groups that are accepted may still be given up by their step."""
    law = admission(slots=64, batch=4, max_age=0, target=8)
    assert law.wants_more(Tally(claims=1, claimed=2, committed=2))
    assert law.wants_more(Tally(claims=1, claimed=2, committed=5))
    assert not law.wants_more(Tally(claims=1, claimed=2, committed=6))


def test_recovery_counts_what_was_accepted() -> None:
    """AReaL: after a recovery at version v, accepted is v * batch, and one window is granted."""
    law = admission(slots=100, batch=4, max_age=2, version=5)
    assert law.grants(Tally(claims=5, claimed=20), accepted=20, running=0) == 12


@given(
    slots=st.integers(1, 50),
    batch=st.integers(1, 20),
    max_age=st.integers(0, 5),
    version=st.integers(0, 20),
    steps=st.integers(1, 30),
    running=st.integers(0, 60),
    accepted=st.integers(0, 600),
)
def test_grants_never_exceed_any_bound(
    slots: int, batch: int, max_age: int, version: int, steps: int, running: int, accepted: int
) -> None:
    """I33: what is in flight is bounded by the slots, the window and the end of the run, at any state."""
    law = admission(slots=slots, batch=batch, max_age=max_age, version=version, target=steps * batch)
    granted = law.grants(Tally(), accepted=accepted, running=running)
    assert granted >= 0
    if granted:
        assert running + granted <= slots
        assert accepted + running + granted <= (max_age + version + 1) * batch
        assert accepted + running + granted <= steps * batch
