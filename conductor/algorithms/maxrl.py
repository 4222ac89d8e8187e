"""Maximum likelihood reinforcement learning."""

import math
from collections.abc import Sequence

from conductor.algorithms.baseline import centred
from protocols.errors import UserError


def advantages(rewards: Sequence[float]) -> tuple[float, ...]:
    """Center the rewards of one group and divide by their mean.

    The mean estimates the probability of success: a success counts the more the rarer it is, as in the gradient
    of its logarithm.

    Args:
        rewards: One for each sample that earned one, at least 0, shape ``[G]``, ``G >= 1``.

    Returns:
        Shape ``[G]``, dimensionless, in the order given; zeros when all rewards agree, or there is only one.

    Raises:
        UserError: A reward is negative, so the mean is no probability and may turn the signs around.

    Source:
        MaxRL, arXiv 2602.02710.
    """
    if min(rewards) < 0:
        why = f"it needs rewards of at least 0, got {min(rewards):g}"
        raise UserError(f"train.algorithm = 'maxrl': {why}; add to all of them, or name another algorithm")
    mean = math.fsum(rewards) / len(rewards)
    return tuple(each / mean if mean else 0.0 for each in centred(rewards))
