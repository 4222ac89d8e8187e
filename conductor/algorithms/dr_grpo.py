"""GRPO done right: no division by the spread of the group."""

from collections.abc import Sequence

from conductor.algorithms.baseline import centred


def advantages(rewards: Sequence[float]) -> tuple[float, ...]:
    """Center the rewards of one group.

    Dividing by the standard deviation would weigh prompts that are nearly always or nearly never solved more
    than the others. The paper's other change, a constant length in the loss, is the trainer's.

    Args:
        rewards: One for each sample that earned one, shape ``[G]``, ``G >= 1``.

    Returns:
        Shape ``[G]``, in reward units, in the order given; zeros when all rewards agree, or there is only one.

    Source:
        Dr. GRPO, arXiv 2503.20783.
    """
    return centred(rewards)
