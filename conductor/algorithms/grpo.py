"""Group-relative policy optimization."""

from collections.abc import Sequence

from conductor.algorithms.baseline import centred, deviation


def advantages(rewards: Sequence[float], *, eps: float = 1e-6) -> tuple[float, ...]:
    """Center and scale the rewards of one group.

    Args:
        rewards: One for each sample that earned one, shape ``[G]``, ``G >= 1``.
        eps: Added to the standard deviation, in reward units.

    Returns:
        Shape ``[G]``, dimensionless, in the order given; zeros when all rewards agree, or there is only one.

    Source:
        GRPO, arXiv 2402.03300, outcome supervision; the standard deviation is the sample's (``G - 1``).
    """
    scale = deviation(rewards) + eps
    return tuple(each / scale if each else 0.0 for each in centred(rewards))
