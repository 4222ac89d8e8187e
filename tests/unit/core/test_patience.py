"""Budgets of causes: what counts against them, and what refills them."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.core.patience import Patience
from protocols.errors import BudgetExhausted, Transient
from protocols.pauses import FIRST_S, LONGEST_S, pause_s


def lost() -> Transient:
    return Transient("the grader is gone")


def test_one_failure_too_many_is_a_verdict_with_the_numbers() -> None:
    patience = Patience(what="grading", allowed=2)
    for now in (10.0, 20.0):
        patience.fail(lost(), began=now, now=now)
    with pytest.raises(BudgetExhausted, match=r"grading: 3 failures, 2 allowed by retries.*the grader is gone"):
        patience.fail(lost(), began=30.0, now=30.0)


def test_any_success_refills_the_budget() -> None:
    patience = Patience(what="grading", allowed=1)
    for now in range(10):
        patience.fail(lost(), began=now, now=now)
        patience.succeed()
    assert patience.failures == 0
    assert patience.successes == 10


def test_all_who_fail_together_count_once() -> None:
    """Fault search, seed 660: when the grader died, every group that was being graded spent the budget of all."""
    patience = Patience(what="grading", allowed=1)
    for number in range(100):
        patience.fail(lost(), began=number / 100, now=1.0 + number / 100)
    assert patience.failures == 1
    patience.fail(lost(), began=1.3, now=1.3)
    assert patience.failures == 1, "the pause is not over yet"
    with pytest.raises(BudgetExhausted):
        patience.fail(lost(), began=2.0, now=2.0)


@given(st.text(max_size=20))
def test_pauses_double_up_to_a_bound_and_repeat_themselves(who: str) -> None:
    pauses = [pause_s(failures, who) for failures in range(1, 100)]
    assert pauses == [pause_s(failures, who) for failures in range(1, 100)]
    assert 0.75 * FIRST_S <= pauses[0] <= FIRST_S
    assert all(after > before for before, after in pairwise(pauses[:6]))
    assert all(0.75 * LONGEST_S <= pause <= LONGEST_S for pause in pauses[6:])


def test_two_do_not_come_back_together() -> None:
    assert len({pause_s(3, f"L{number}") for number in range(100)}) == 100


def test_a_call_that_began_when_the_pause_was_over_counts() -> None:
    """Or who always waits out the pause would be put up with for ever."""
    patience = Patience(what="grading", allowed=1)
    patience.fail(lost(), began=0.0, now=0.0)
    over = pause_s(1, "grading")
    with pytest.raises(BudgetExhausted):
        patience.fail(lost(), began=over, now=over)
