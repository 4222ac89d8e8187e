"""Algorithms by the name that a job gives them."""

from collections.abc import Callable, Sequence
from typing import Literal

from conductor.algorithms import dr_grpo, grpo, lite_ppo, maxrl, rloo

Algorithm = Literal["grpo", "dr_grpo", "rloo", "maxrl", "lite_ppo"]
Advantages = Callable[[Sequence[Sequence[float]]], tuple[tuple[float, ...], ...]]
"""The rewards of each group of a batch in, the advantages of the same samples out."""


def _each(of_one_group: Callable[[Sequence[float]], tuple[float, ...]]) -> Advantages:
    return lambda groups: tuple(of_one_group(rewards) for rewards in groups)


ALGORITHMS: dict[Algorithm, Advantages] = {
    "grpo": _each(grpo.advantages),
    "dr_grpo": _each(dr_grpo.advantages),
    "rloo": _each(rloo.advantages),
    "maxrl": _each(maxrl.advantages),
    "lite_ppo": lite_ppo.advantages,
}
