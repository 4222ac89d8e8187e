"""The run made by hand: the real controller with neither torch nor file."""

import importlib.util
from pathlib import Path

RUN = Path(__file__).parents[2] / "examples" / "bandit" / "run.py"


async def test_a_policy_of_ten_numbers_learns_which_arm_pays() -> None:
    """docs/python.md: a backend and workloads made by hand, on the virtual clock of a unit test."""
    spec = importlib.util.spec_from_file_location("bandit", RUN)
    assert spec is not None
    assert spec.loader is not None
    bandit = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bandit)
    result = await bandit.train(steps=40)
    assert result.reward_first < 0.3
    assert result.reward_last > 0.95
    assert result.accounts.open == 0
