"""Calls and their cancellations, in whatever order Ray delivers them."""

import pytest

pytest.importorskip("ray")

from hypothesis import given
from hypothesis import strategies as st

from backends.ray.order import Withdrawals

pytestmark = pytest.mark.cluster


@given(calls=st.integers(1, 12), data=st.data())
def test_a_call_that_was_taken_back_before_it_came_is_not_wanted(calls: int, data: st.DataObject) -> None:
    """An abort may overtake its request, and what it aborts must not run when it comes."""
    taken_back = data.draw(st.sets(st.integers(0, calls - 1)))
    messages = [("arrive", number) for number in range(calls)] + [("withdraw", number) for number in taken_back]
    order, seen = Withdrawals(), set[int]()
    for kind, number in data.draw(st.permutations(messages)):
        if kind == "withdraw":
            order.withdraw(number)
            seen.add(number)
        else:
            assert order.arrive(number) is (number not in seen)
    assert vars(order) == {"_all_below": calls, "_arrived": set(), "_withdrawn": set()}, "nothing is kept for ever"
