"""How far the log-probabilities of who drew the tokens lie from the trained policy's own.

Of tokens that the same weights drew, it is what engine and trainer compute differently; else what has been learned
since is in it too.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from backends.trainers.torch import ratios

APART = "mismatch/mean"
RATIO = "mismatch/ratio"
LARGEST = "mismatch/max"
ESS = "mismatch/ess"
_SQUARE = "mismatch/square"  # of the ratio; it is not shown


def of_tokens(logprobs: Tensor, behaviour: Tensor) -> Mapping[str, Tensor]:
    """Return what is worth a mean over tokens, each of shape ``[N]``.

    Args:
        logprobs: Of the trained policy, shape ``[N]``.
        behaviour: Of who drew the tokens, shape ``[N]``.
    """
    ratio = ratios.of_tokens(logprobs, behaviour).exp()
    return {APART: (logprobs - behaviour).abs(), RATIO: ratio, _SQUARE: ratio.square()}


def largest(logprobs: Tensor, behaviour: Tensor, weights: Tensor) -> float:
    """Return the largest difference of a token that counts."""
    apart = torch.where(weights > 0, (logprobs - behaviour).abs(), 0.0)
    return apart.max().item() if apart.numel() else 0.0


def concluded(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics of a pass, with the effective sample size in place of the mean of the squares.

    It is the share of the tokens that would say as much, had the trained policy drawn them: 1 where all ratios agree.

    Source:
        Kish's effective sample size, of the importance ratios of tokens.
    """
    square, ratio = metrics.get(_SQUARE, 0.0), metrics.get(RATIO, 0.0)
    shown = {name: value for name, value in metrics.items() if name != _SQUARE}
    return {**shown, APART: metrics.get(APART, 0.0), RATIO: ratio, ESS: ratio**2 / square if square else 1.0}
