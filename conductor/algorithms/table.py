"""What each algorithm does with rewards, by the name that a job gives it.

What it does with tokens is the trainer's part, which goes by the same name.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from conductor.algorithms import dr_grpo, grpo, lite_ppo, maxrl, rloo
from protocols.training import Algorithm

Advantages = Callable[[Sequence[Sequence[float]]], tuple[tuple[float, ...], ...]]
"""The rewards of each group of a batch in, the advantages of the same samples out."""


class Estimator(NamedTuple):
    """How rewards become advantages.

    Attributes:
        advantages: Of samples.
        compares: Whether samples are compared with others of their group: then one whose samples all earned the same
            teaches nothing, and neither does a group of one.
    """

    advantages: Advantages
    compares: bool = True


def _each(of_one_group: Callable[[Sequence[float]], tuple[float, ...]]) -> Advantages:
    return lambda groups: tuple(of_one_group(rewards) for rewards in groups)


_OF_TOKENS = Estimator(_each(lambda rewards: (0.0,) * len(rewards)), compares=False)
"""The trainer makes advantages of the rewards themselves."""

ALGORITHMS: Mapping[Algorithm, Estimator] = {
    "grpo": Estimator(_each(grpo.advantages)),
    "dapo": Estimator(_each(grpo.advantages)),
    "dr_grpo": Estimator(_each(dr_grpo.advantages)),
    "rloo": Estimator(_each(rloo.advantages)),
    "maxrl": Estimator(_each(maxrl.advantages)),
    "lite_ppo": Estimator(lite_ppo.advantages),
    "gspo": Estimator(_each(grpo.advantages)),
    "cispo": Estimator(_each(grpo.advantages)),
    "reinforce_pp": _OF_TOKENS,
    "reinforce_pp_baseline": Estimator(_each(dr_grpo.advantages)),
    "ppo": _OF_TOKENS,
}
