"""The learning rate as a function of the step alone: a run that resumes needs nothing but its step."""

import math
from typing import Literal

Schedule = Literal["constant", "linear", "cosine"]


def learning_rate(
    step: int, *, base: float, schedule: Schedule, warmup: int, total: int | None, floor: float = 0.0
) -> float:
    """Return the learning rate of an optimizer step.

    Args:
        step: From 0.
        base: The highest rate.
        schedule: What follows the warm-up: ``constant``: ``base``. ``linear``, ``cosine``: falls from ``base`` at step
            ``warmup`` to ``floor x base`` at step ``total`` and stays there.
        warmup: Steps of the warm-up, whose rates rise evenly from ``base / warmup`` at step 0 to ``base``.
        total: Steps of the run, more than ``warmup``; only ``constant`` goes without.
        floor: Part of ``base``, 0 to 1.

    Source:
        Half a cosine: SGDR, arXiv 1608.03983, without restarts.
    """
    if step < warmup:
        return base * (step + 1) / warmup
    if schedule == "constant":
        return base
    assert total is not None
    progress = min(1.0, (step - warmup) / (total - warmup))
    left = 1 - progress if schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return base * (floor + (1 - floor) * left)
