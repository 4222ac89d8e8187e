"""What holds for the advantages of every algorithm."""

import math
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.algorithms.table import ALGORITHMS
from protocols.training import Algorithm

rewards = st.lists(st.floats(0, 1e3), min_size=1, max_size=16)
groups = st.lists(rewards, min_size=1, max_size=5)
each = pytest.mark.parametrize("name", ALGORITHMS)


def test_the_table_has_every_name() -> None:
    assert tuple(ALGORITHMS) == get_args(Algorithm)


@each
@given(groups=groups)
def test_advantages_are_centred_and_finite_and_keep_the_order(name: Algorithm, groups: list[list[float]]) -> None:
    for group, advantages in zip(groups, ALGORITHMS[name].advantages(groups), strict=True):
        assert len(advantages) == len(group)
        assert all(map(math.isfinite, advantages))
        assert math.fsum(advantages) == pytest.approx(0.0, abs=1e-6 * max(1.0, *map(abs, advantages)))
        assert [advantages[at] for at in sorted(range(len(group)), key=group.__getitem__)] == sorted(advantages)


@each
@pytest.mark.parametrize("group", [[0.1] * 3, [0.0] * 4, [0.7]])
def test_rewards_that_agree_teach_nothing(name: Algorithm, group: list[float]) -> None:
    """I61, I62: exact zeros, not noise divided by eps, and not the NaN of a spread that is 0."""
    assert ALGORITHMS[name].advantages([group, [1.0, 0.0]])[0] == (0.0,) * len(group)


@each
@given(groups=groups, data=st.data())
def test_the_order_of_groups_and_samples_does_not_matter(
    name: Algorithm, groups: list[list[float]], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(groups))))
    straight, turned = (
        ALGORITHMS[name].advantages(groups),
        ALGORITHMS[name].advantages([groups[at][::-1] for at in order]),
    )
    for at, advantages in zip(order, turned, strict=True):
        assert advantages[::-1] == pytest.approx(straight[at], rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("name", ["grpo", "lite_ppo"])
@given(groups=groups, scale=st.floats(0.1, 10), shift=st.floats(-10, 10))
def test_the_unit_of_the_reward_does_not_matter(
    name: Algorithm, groups: list[list[float]], scale: float, shift: float
) -> None:
    """Scaling and shifting all rewards changes nothing but rounding and eps."""
    if any(0 < max(group) - min(group) < 1 for group in groups):
        return
    moved = [[scale * reward + shift for reward in group] for group in groups]
    for before, after in zip(ALGORITHMS[name].advantages(groups), ALGORITHMS[name].advantages(moved), strict=True):
        assert after == pytest.approx(before, abs=1e-4)


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "maxrl"])
@given(group=rewards, other=rewards)
def test_a_group_does_not_depend_on_the_others(name: Algorithm, group: list[float], other: list[float]) -> None:
    assert ALGORITHMS[name].advantages([group, other])[0] == ALGORITHMS[name].advantages([group])[0]
