"""Learning rates by step: worked numbers, laws, and transformers' schedules where they agree."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import get_cosine_schedule_with_warmup, get_linear_schedule_with_warmup
from transformers.optimization import get_cosine_with_min_lr_schedule_with_warmup

from backends.trainers.torch.schedule import Schedule, learning_rate

SCHEDULES: tuple[Schedule, ...] = ("constant", "linear", "cosine")
each_schedule = pytest.mark.parametrize("schedule", SCHEDULES)


def _rates(schedule: Schedule, warmup: int, total: int, floor: float = 0.0, base: float = 1.0) -> list[float]:
    """Return the rates of all steps, and of some behind the last."""
    return [
        learning_rate(step, base=base, schedule=schedule, warmup=warmup, total=total, floor=floor)
        for step in range(total + 3)
    ]


def test_worked_numbers() -> None:
    assert _rates("constant", 2, 4) == [0.5, 1, 1, 1, 1, 1, 1]
    assert _rates("linear", 2, 6) == pytest.approx([0.5, 1, 1, 0.75, 0.5, 0.25, 0, 0, 0])
    assert _rates("linear", 0, 2, 0.2, 10.0) == pytest.approx([10, 6, 2, 2, 2])
    assert _rates("cosine", 0, 4) == pytest.approx([1, 0.853553, 0.5, 0.146447, 0, 0, 0], abs=1e-6)


def test_a_constant_rate_needs_no_end() -> None:
    assert learning_rate(10**9, base=3e-4, schedule="constant", warmup=5, total=None) == 3e-4


@each_schedule
@given(warmup=st.integers(0, 20), rest=st.integers(1, 50), floor=st.floats(0, 1))
def test_rates_rise_then_fall_within_their_bounds(schedule: Schedule, warmup: int, rest: int, floor: float) -> None:
    rates = _rates(schedule, warmup, warmup + rest, floor)
    rising, falling = rates[:warmup], rates[warmup:]
    assert rising == pytest.approx([(step + 1) / warmup for step in range(warmup)])
    assert falling[0] == pytest.approx(1)
    assert all(before >= after - 1e-12 for before, after in pairwise(falling))
    assert falling[rest:] == pytest.approx([1.0 if schedule == "constant" else floor] * 3)
    assert min(rates[:-3]) > 0


@given(warmup=st.integers(0, 20), half=st.integers(1, 30), floor=st.floats(0, 1))
def test_half_way_all_that_fall_have_fallen_by_half(warmup: int, half: int, floor: float) -> None:
    for schedule in ("linear", "cosine"):
        rates = _rates(schedule, warmup, warmup + 2 * half, floor)
        assert rates[warmup + half] == pytest.approx((1 + floor) / 2)


@given(base=st.floats(1e-7, 1), step=st.integers(0, 40))
def test_rates_scale_with_their_base(base: float, step: int) -> None:
    for schedule in SCHEDULES:
        one, other = (
            learning_rate(step, base=each, schedule=schedule, warmup=7, total=30, floor=0.1) for each in (1.0, base)
        )
        assert other == pytest.approx(base * one)


@pytest.mark.parametrize(
    ("schedule", "theirs"), [("linear", get_linear_schedule_with_warmup), ("cosine", get_cosine_schedule_with_warmup)]
)
@given(warmup=st.integers(0, 10), rest=st.integers(1, 40))
def test_rates_are_those_of_transformers_but_for_a_step_of_the_warm_up(
    schedule: Schedule, theirs: Callable[..., torch.optim.lr_scheduler.LambdaLR], warmup: int, rest: int
) -> None:
    """Theirs is 0 at step 0, which trains nothing. In the warm-up ours is theirs a step later, then the same."""
    total = warmup + rest
    rate = theirs(_optimizer(), warmup, total).lr_lambdas[0]
    expected = [rate(step + 1 if step < warmup else step) for step in range(total)]
    assert _rates(schedule, warmup, total)[:total] == pytest.approx(expected)
    assert warmup == 0 or rate(0) == 0


@given(warmup=st.integers(0, 10), rest=st.integers(1, 40), floor=st.floats(0.01, 0.5))
def test_a_floor_is_that_of_transformers(warmup: int, rest: int, floor: float) -> None:
    total = warmup + rest
    rate = get_cosine_with_min_lr_schedule_with_warmup(_optimizer(), warmup, total, min_lr_rate=floor).lr_lambdas[0]
    expected = [rate(step) for step in range(warmup, total)]
    assert _rates("cosine", warmup, total, floor)[warmup:total] == pytest.approx(expected)


def _optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
