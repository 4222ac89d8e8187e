"""GRPO advantages against worked numbers and laws."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.algorithms.grpo import advantages

REWARDS = st.lists(st.floats(-1e3, 1e3, allow_nan=False), min_size=2, max_size=32)


def test_worked_numbers() -> None:
    """Mean 1/4, sample deviation 1/2: a winner among four gains 1.5, the others lose 0.5."""
    assert advantages([1, 0, 0, 0], eps=0.0) == pytest.approx((1.5, -0.5, -0.5, -0.5))


def test_equal_rewards_teach_nothing() -> None:
    """A constant group gets exact zeros, not noise divided by eps."""
    assert advantages([0.1] * 3) == (0.0, 0.0, 0.0)


def test_one_reward_is_no_group() -> None:
    """I61: an advantage relative to nobody would be NaN or 0; it is refused."""
    with pytest.raises(ValueError, match="two rewards or more, got 1"):
        advantages([1.0])


@given(REWARDS)
def test_advantages_are_centred_and_finite(rewards: list[float]) -> None:
    """Sum zero, order kept, never NaN."""
    result = advantages(rewards)
    assert all(map(math.isfinite, result))
    assert math.fsum(result) == pytest.approx(0.0, abs=1e-6 * len(rewards))
    best = rewards.index(max(rewards))
    assert result[best] == max(result)


@given(REWARDS, st.floats(0.1, 10), st.floats(-10, 10))
def test_advantages_do_not_depend_on_the_unit_of_the_reward(rewards: list[float], scale: float, shift: float) -> None:
    """Scaling and shifting all rewards of a group changes nothing but rounding and eps."""
    if max(rewards) - min(rewards) < 1:
        return
    moved = [scale * reward + shift for reward in rewards]
    assert advantages(moved, eps=0.0) == pytest.approx(advantages(rewards, eps=0.0), abs=1e-6)
