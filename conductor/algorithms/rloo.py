"""REINFORCE with a leave-one-out baseline."""

from collections.abc import Sequence

from conductor.algorithms.baseline import centred


def advantages(rewards: Sequence[float]) -> tuple[float, ...]:
    """Compare each reward with the mean of the group's others.

    That is the distance from the group's mean times ``G / (G - 1)``: the baseline of a sample does not depend on
    the sample, so it adds no bias.

    Args:
        rewards: One for each sample that earned one, shape ``[G]``, ``G >= 1``.

    Returns:
        Shape ``[G]``, in reward units, in the order given; zeros when all rewards agree, or there is only one.

    Source:
        Kool et al. 2019, "Buy 4 REINFORCE samples, get a baseline for free"; RLOO, arXiv 2402.14740.
    """
    others = max(len(rewards) - 1, 1)
    return tuple(each * len(rewards) / others for each in centred(rewards))
