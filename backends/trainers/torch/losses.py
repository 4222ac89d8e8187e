"""Policy-gradient losses, token by token. Pure functions of flat tensors of ``N`` completion tokens."""

from typing import NamedTuple

import torch
from torch import Tensor


class TokenLoss(NamedTuple):
    """Loss of each token and what is worth knowing about it; only ``loss`` has a gradient.

    Attributes:
        loss: Shape ``[N]``, to be minimized.
        ratio: Probability now over probability when drawn, as the loss reads it, shape ``[N]``.
        clipped: Whether a bound on the ratio changed the token's gradient, shape ``[N]``.
    """

    loss: Tensor
    ratio: Tensor
    clipped: Tensor


def clipped_surrogate(
    log_ratio: Tensor, advantages: Tensor, *, low: float, high: float, dual: float | None = None
) -> TokenLoss:
    """Compute the clipped surrogate.

    Args:
        log_ratio: Of tokens, or of whole sequences for the sequence-level form, shape ``[N]``.
        advantages: Shape ``[N]``, dimensionless.
        low: The ratio counts down to ``1 - low``.
        high: And up to ``1 + high``.
        dual: Where the advantage is negative, the ratio counts up to this at most, above 1; None: without end.

    Source:
        PPO, arXiv 1707.06347, equation 7; two bounds: DAPO, arXiv 2503.14476; dual clip: arXiv 1912.09729;
        of sequences: GSPO, arXiv 2507.18071.
    """
    ratio = log_ratio.exp()
    free = ratio * advantages
    gain = torch.minimum(free, ratio.clamp(1 - low, 1 + high) * advantages)
    if dual is not None:
        gain = torch.where(advantages < 0, torch.maximum(gain, dual * advantages), gain)
    return TokenLoss(-gain, ratio.detach(), (gain != free).detach())


def cispo(logprobs: Tensor, log_ratio: Tensor, advantages: Tensor, *, low: float, high: float) -> TokenLoss:
    """Compute the policy gradient weighted with the clipped ratio: clipping takes no token's gradient away.

    Args:
        logprobs: Of the current policy, shape ``[N]``.
        log_ratio: Of tokens, shape ``[N]``.
        advantages: Shape ``[N]``, dimensionless.
        low: The weight is at least ``1 - low``; 1 leaves it without a lower bound.
        high: And at most ``1 + high``.

    Source:
        CISPO, MiniMax-M1, arXiv 2506.13585.
    """
    ratio = log_ratio.detach().exp()
    weights = ratio.clamp(1 - low, 1 + high)
    return TokenLoss(-(weights * advantages * logprobs), ratio, weights != ratio)


def reinforce(logprobs: Tensor, log_ratio: Tensor, advantages: Tensor) -> TokenLoss:
    """Compute the plain policy gradient, which knows nothing of who drew the tokens.

    Args:
        logprobs: Of the current policy, shape ``[N]``.
        log_ratio: Of tokens, shape ``[N]``; only reported.
        advantages: Shape ``[N]``, dimensionless.

    Source:
        REINFORCE, Williams 1992.
    """
    ratio = log_ratio.detach().exp()
    return TokenLoss(-(advantages * logprobs), ratio, torch.zeros_like(ratio, dtype=torch.bool))
