"""The group's mean and the batch's spread."""

from collections.abc import Sequence
from itertools import chain

from conductor.algorithms.baseline import centred, deviation


def advantages(groups: Sequence[Sequence[float]], *, eps: float = 1e-6) -> tuple[tuple[float, ...], ...]:
    """Center the rewards of each group and scale them by the standard deviation of all of the batch's.

    A group whose rewards hardly differ is not blown up, and the size of a step does not hang on the unit of the
    rewards.

    Args:
        groups: The rewards of each group that is trained in one step, each of at least one.
        eps: Added to the standard deviation, in reward units.

    Returns:
        Dimensionless, in the order given; zeros for a group whose rewards agree, or that has only one.

    Source:
        Lite PPO, arXiv 2508.08221; the standard deviation is the sample's (``n - 1``).
    """
    scale = deviation(tuple(chain.from_iterable(groups))) + eps
    return tuple(tuple(each / scale if each else 0.0 for each in centred(rewards)) for rewards in groups)
