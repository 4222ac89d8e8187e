"""What the rewards of a group are compared with, and how far they spread."""

import math
from collections.abc import Sequence


def centred(rewards: Sequence[float]) -> tuple[float, ...]:
    """Subtract the group's mean.

    Args:
        rewards: Finite, shape ``[G]``, ``G >= 1``.

    Returns:
        Shape ``[G]``, in reward units, in the order given; exact zeros when all rewards agree.
    """
    if min(rewards) == max(rewards):
        return (0.0,) * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    return tuple(reward - mean for reward in rewards)


def deviation(values: Sequence[float]) -> float:
    """Return the standard deviation of a sample, ``n - 1`` in its denominator; 0 for a single value."""
    if len(values) < 2:
        return 0.0
    return math.hypot(*centred(values)) / math.sqrt(len(values) - 1)
