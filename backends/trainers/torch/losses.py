"""The clipped policy gradient, token by token. Pure functions of flat tensors.

``N`` is the number of completion tokens, ``V`` the size of the vocabulary.
"""

from typing import NamedTuple

import torch
from torch import Tensor

_MAX_LOG_RATIO = 20.0


class Scores(NamedTuple):
    """What the current policy says of the tokens that were drawn.

    Attributes:
        logprobs: Shape ``[N]``, natural logarithms.
        entropy: Of the whole distribution at each token, shape ``[N]``, nats; without gradient.
    """

    logprobs: Tensor
    entropy: Tensor


def score_tokens(logits: Tensor, targets: Tensor, temperature: Tensor) -> Scores:
    """Score the tokens that were drawn.

    Args:
        logits: Shape ``[N, V]``, each predicting one token.
        targets: Ids of these tokens, shape ``[N]``.
        temperature: They were drawn at, shape ``[N]``, above 0.
    """
    logprobs = torch.log_softmax(logits / temperature.unsqueeze(-1), dim=-1)
    with torch.no_grad():
        entropy = -(logprobs.exp() * logprobs).sum(-1)
    return Scores(logprobs.gather(-1, targets.unsqueeze(-1)).squeeze(-1), entropy)


class ClippedLoss(NamedTuple):
    """Loss of each token and what is worth knowing about it; only ``loss`` has a gradient.

    Attributes:
        loss: Shape ``[N]``, to be minimized.
        ratio: Probability now over probability when drawn, shape ``[N]``.
        clipped: Whether clipping took the token's gradient away, shape ``[N]``.
        kl: Estimate of the divergence of the behaviour policy from the current one, shape ``[N]``, nats.
    """

    loss: Tensor
    ratio: Tensor
    clipped: Tensor
    kl: Tensor


def clipped_loss(
    logprobs: Tensor, behaviour: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float
) -> ClippedLoss:
    """Compute the clipped surrogate loss of each token.

    Args:
        logprobs: Of the current policy, shape ``[N]``.
        behaviour: Of the policy that drew the tokens, shape ``[N]``.
        advantages: Shape ``[N]``, dimensionless.
        clip_low: The ratio counts down to ``1 - clip_low``.
        clip_high: And up to ``1 + clip_high``.

    Source:
        PPO, arXiv 1707.06347, equation 7. The divergence is the estimator ``k3`` of J. Schulman,
        "Approximating KL divergence": ``r - 1 - log r``, never negative.
    """
    # beyond e^20 the ratio overflows, and inf * 0 in the gradient of the branch not taken is NaN
    log_ratio = (logprobs - behaviour).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    ratio = log_ratio.exp()
    free = ratio * advantages
    bounded = ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    with torch.no_grad():
        clipped = bounded < free
        kl = ratio - 1 - log_ratio
    return ClippedLoss(-torch.minimum(free, bounded), ratio.detach(), clipped, kl)
