"""Failure domains are set aside, for longer and longer, and come back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.core.quarantine import FIRST_S, LONGEST_S, LOSSES, WINDOW_S, Quarantine

RACK, OTHER = "rack-1", "rack-2"


def broken(quarantine: Quarantine, at_s: float) -> None:
    for _ in range(LOSSES):
        quarantine.lose(RACK, now=at_s)


def test_a_domain_is_set_aside_after_some_losses_and_no_other_one_is() -> None:
    quarantine = Quarantine()
    for number in range(LOSSES):
        assert quarantine.aside(number) == frozenset()
        quarantine.lose(RACK, now=number)
        quarantine.lose(f"{OTHER}/{number}", now=number)
    assert quarantine.aside(LOSSES) == {RACK}


def test_losses_that_lie_far_apart_are_nobodys_fault() -> None:
    quarantine = Quarantine()
    for number in range(50):
        quarantine.lose(RACK, now=number * WINDOW_S / (LOSSES - 1) * 1.01)
        assert quarantine.aside(number * WINDOW_S) == frozenset()


@pytest.mark.parametrize(("later_s", "aside"), [(0.0, {RACK}), (1.0, set[str]())])
def test_a_loss_counts_as_long_as_the_window_is(later_s: float, aside: set[str]) -> None:
    quarantine = Quarantine()
    for _ in range(LOSSES - 1):
        quarantine.lose(RACK, now=0.0)
    quarantine.lose(RACK, now=WINDOW_S + later_s)
    assert quarantine.aside(WINDOW_S + later_s) == aside


def test_it_comes_back_and_is_set_aside_for_longer_when_it_fails_again() -> None:
    quarantine = Quarantine()
    began = 0.0
    for times in range(6):
        broken(quarantine, began)
        for_s = min(LONGEST_S, FIRST_S * 2**times)
        assert quarantine.aside(began + for_s - 1) == {RACK}
        assert quarantine.aside(began + for_s) == frozenset()
        began += for_s


def test_what_was_well_for_long_begins_anew() -> None:
    quarantine = Quarantine()
    broken(quarantine, 0.0)
    broken(quarantine, FIRST_S)
    again = 3 * FIRST_S + LONGEST_S
    broken(quarantine, again)
    assert quarantine.aside(again + FIRST_S - 1) == {RACK}
    assert quarantine.aside(again + FIRST_S) == frozenset()


def test_a_place_that_is_taken_away_sets_its_domain_aside_at_once() -> None:
    quarantine = Quarantine()
    quarantine.lose(RACK, now=0.0, preempted=True)
    assert quarantine.aside(1.0) == {RACK}


@pytest.mark.parametrize("preempted", [False, True])
def test_losses_while_it_is_set_aside_make_it_no_worse(preempted: bool) -> None:
    """All workers of a node that goes away are lost at once; that is one failure of it."""
    quarantine = Quarantine()
    broken(quarantine, 0.0)
    for _ in range(20):
        quarantine.lose(RACK, now=1.0, preempted=preempted)
    assert quarantine.aside(FIRST_S - 0.5) == {RACK}
    assert quarantine.aside(FIRST_S) == frozenset()
    quarantine.lose(RACK, now=FIRST_S)
    assert quarantine.aside(FIRST_S) == frozenset(), "those were counted already"


@given(st.lists(st.tuples(st.sampled_from([RACK, OTHER]), st.floats(0, 900), st.booleans()), max_size=40))
def test_nobody_is_set_aside_for_ever(losses: list[tuple[str, float, bool]]) -> None:
    quarantine = Quarantine()
    now = 0.0
    for domain, later_s, preempted in losses:
        now += later_s
        quarantine.lose(domain, now=now, preempted=preempted)
    assert quarantine.aside(now + LONGEST_S) == frozenset()


def test_what_an_earlier_life_had_set_aside_is_known_for_what_is_left_of_it() -> None:
    quarantine = Quarantine()
    quarantine.recall({RACK: 20.0}, now=100.0)
    assert quarantine.left(110.0) == {RACK: 10.0}
    assert quarantine.left(120.0) == {}


def test_what_is_known_since_is_not_forgotten_for_what_was_known_before() -> None:
    quarantine = Quarantine()
    quarantine.set_aside(RACK, now=0.0)
    quarantine.recall({RACK: 1.0, OTHER: 5.0}, now=0.0)
    assert quarantine.left(0.0) == {RACK: FIRST_S, OTHER: 5.0}


def test_a_domain_can_be_set_aside_for_whatever_reason() -> None:
    quarantine = Quarantine()
    quarantine.lose(RACK, now=0.0)
    quarantine.set_aside(RACK, now=0.0)
    quarantine.set_aside(RACK, now=1.0)
    assert quarantine.left(1.0) == {RACK: 2 * FIRST_S}, "the second time is for twice as long"
