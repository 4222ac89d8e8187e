"""Group-relative policy optimization."""

import math
from collections.abc import Sequence


def advantages(rewards: Sequence[float], *, eps: float = 1e-6) -> tuple[float, ...]:
    """Center and scale the rewards of one group.

    Args:
        rewards: One for each sample that earned one, shape ``[G]``, ``G >= 2``.
        eps: Added to the standard deviation, in reward units.

    Returns:
        Shape ``[G]``, dimensionless, in the order given; zeros when all rewards agree.

    Raises:
        ValueError: Fewer than two rewards.

    Source:
        GRPO, arXiv 2402.03300, outcome supervision; the standard deviation is the sample's (``G - 1``).
    """
    if len(rewards) < 2:
        raise ValueError(f"a group-relative advantage needs two rewards or more, got {len(rewards)}")
    if min(rewards) == max(rewards):
        return (0.0,) * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    variance = math.fsum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - 1)
    scale = math.sqrt(variance) + eps
    return tuple((reward - mean) / scale for reward in rewards)
