"""How late the loop wakes a sleeper: nothing under virtual time, exactly what blocks it otherwise."""

import time

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.observe.lag import LagMonitor


async def test_a_free_loop_has_no_lag() -> None:
    monitor = LagMonitor()
    async with anyio.create_task_group() as group:
        group.start_soon(monitor.run, 0.01, name="lag")
        await anyio.sleep(10)
        assert monitor.take() == (0.0, 0.0)
        group.cancel_scope.cancel()


async def test_without_a_measurement_both_numbers_are_zero() -> None:
    assert LagMonitor().take() == (0.0, 0.0)


@pytest.mark.real_time
async def test_what_blocks_the_loop_is_measured_and_taken_once() -> None:
    """A reward that computes on the loop stops every engine and every abort with it."""
    monitor = LagMonitor()
    async with anyio.create_task_group() as group:
        group.start_soon(monitor.run, 0.001, name="lag")
        await anyio.sleep(0.01)
        time.sleep(0.08)  # noqa: ASYNC251 - blocking the loop is what is measured
        await anyio.sleep(0.005)
        p99_s, max_s = monitor.take()
        assert 0.07 < p99_s <= max_s
        await anyio.sleep(0.005)
        assert monitor.take()[1] < max_s
        group.cancel_scope.cancel()


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=300))
def test_the_percentile_is_at_most_a_tenth_or_ten_microseconds_too_high(lags: list[float]) -> None:
    monitor = LagMonitor()
    for lag in lags:
        monitor._add(lag)
    p99_s, max_s = monitor.take()
    exact = sorted(lags)[-(-99 * len(lags) // 100) - 1]
    assert max_s == max(lags)
    assert exact <= p99_s * (1 + 1e-9)
    assert p99_s <= max(exact * 1.1, 1e-5) * (1 + 1e-9)
    assert monitor.take() == (0.0, 0.0)
