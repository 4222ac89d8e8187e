"""Advantages against numbers worked by hand and those of other projects' tests."""

import pytest

from conductor.algorithms import dr_grpo, grpo, lite_ppo, maxrl, rloo
from protocols.errors import UserError
from tests.support.texts import exactly


def test_grpo() -> None:
    """Mean 1/4, sample deviation 1/2: a winner among four gains 1.5, the others lose 0.5."""
    assert grpo.advantages([1, 0, 0, 0], eps=0.0) == pytest.approx((1.5, -0.5, -0.5, -0.5))


def test_rloo_of_skyrl() -> None:
    """Each against the mean of the others; alone against nothing."""
    assert [rloo.advantages(group) for group in ([6, 3], [9, 12], [1])] == [(3, -3), (-3, 3), (0,)]


def test_dr_grpo_of_skyrl() -> None:
    assert [dr_grpo.advantages(group) for group in ([6, 3], [9, 12])] == [(1.5, -1.5), (-1.5, 1.5)]


def test_maxrl_of_skyrl() -> None:
    assert maxrl.advantages([6, 3]) == pytest.approx((1.5 / 4.5, -1.5 / 4.5))
    assert maxrl.advantages([9, 12]) == pytest.approx((-1.5 / 10.5, 1.5 / 10.5))


def test_maxrl_of_prime_rl() -> None:
    """One success in four counts as much as the three failures."""
    assert maxrl.advantages([1, 0, 0, 0]) == (3, -1, -1, -1)


def test_lite_ppo() -> None:
    """Deviations of +-1.5 and +-4.5 from the batch's mean of 7.5: squares of 45, variance 45 / 3."""
    advantage = 1.5 / 15**0.5
    expected = pytest.approx((advantage, -advantage)), pytest.approx((-advantage, advantage))
    assert lite_ppo.advantages([[6, 3], [9, 12]], eps=0.0) == expected


def test_maxrl_refuses_rewards_that_are_no_probabilities() -> None:
    """A mean below 0 would reward the worst sample; one of 0 would divide by it."""
    why = "it needs rewards of at least 0, got -1; add to all of them, or name another algorithm"
    with pytest.raises(UserError, match=exactly(f"train.algorithm = 'maxrl': {why}")):
        maxrl.advantages([-1.0, 1.0])
    assert maxrl.advantages([5e-324, 0.0]) == (0, 0)
