"""The phases of a start share one budget, and the one that goes over it is named."""

import anyio
import pytest

from conductor.fleet.budget import Budget
from protocols.errors import DeadlineExceeded


async def test_what_one_phase_leaves_is_there_for_the_next() -> None:
    budget = Budget(100.0)
    with budget.phase("the reservation"):
        await anyio.sleep(10)
    with budget.phase("the launch"):
        await anyio.sleep(80)
    assert budget.left_s == 10.0


async def test_the_phase_that_uses_up_the_budget_is_named() -> None:
    """W03: one time-out covered placement, environment and start together, and named none of them."""
    budget = Budget(100.0)
    with budget.phase("the reservation"):
        await anyio.sleep(90)
    with pytest.raises(DeadlineExceeded, match="the launch did not end within 10 s"), budget.phase("the launch"):
        await anyio.sleep_forever()
    assert anyio.current_time() == pytest.approx(100.0)
    with pytest.raises(DeadlineExceeded, match="the rendezvous did not end within 0 s"), budget.phase("the rendezvous"):
        await anyio.sleep_forever()
    assert budget.left_s == 0.0
