"""Estimators of the divergence ``D(p || q)`` from tokens drawn from ``p``.

Each takes ``log q - log p`` of the drawn tokens, shape ``[N]``, and returns one estimate a token, shape ``[N]``, in
nats; their mean estimates the divergence.

Source:
    J. Schulman, "Approximating KL divergence", 2020.
"""

import torch
from torch import Tensor

from backends.trainers.torch import ratios
from backends.trainers.torch.options import Estimator


def k1(log_ratio: Tensor) -> Tensor:
    """Return ``-log r``: without bias, of high variance, negative for half of the tokens."""
    return -log_ratio


def k2(log_ratio: Tensor) -> Tensor:
    """Return ``(log r)^2 / 2``: biased, of low variance; its gradient has no bias where ``p`` is being trained."""
    return log_ratio.square() / 2


def k3(log_ratio: Tensor) -> Tensor:
    """Return ``r - 1 - log r``: without bias, of low variance, never negative."""
    return log_ratio.exp() - 1 - log_ratio


def estimate(log_ratio: Tensor, estimator: Estimator) -> Tensor:
    """Return an estimate's value; a ``+`` says something about gradients alone."""
    match estimator:
        case "k1" | "k1+":
            return k1(log_ratio)
        case "k2":
            return k2(log_ratio)
        case "k3" | "k3+":
            return k3(log_ratio)


def penalty(logprobs: Tensor, reference: Tensor, weights: Tensor, estimator: Estimator) -> Tensor:
    """Estimate the divergence of the trained policy from a reference, as a term of the loss.

    A good estimate need not have a good gradient. Of tokens that the trained policy drew, ``k2`` has the gradient of
    the divergence in expectation, ``k3`` that of the reverse ``D(q || p)``, and ``k1`` none at all. A ``+`` takes the
    value of the named one and the gradient of ``k2``.

    Args:
        logprobs: Of the trained policy, shape ``[N]``.
        reference: Log-probabilities of the same tokens, shape ``[N]``.
        weights: At least 0, shape ``[N]``.
        estimator: Whose value and gradient.

    Returns:
        Shape ``[N]``, nats, not yet weighted. Where the weight is 0, value and gradient are 0 whatever stands there.

    Source:
        ``k3``: GRPO, arXiv 2402.03300, equation 4; gradients: arXiv 2510.01555; ``+``: verl.
    """
    log_ratio = torch.where(weights > 0, ratios.of_tokens(reference, logprobs), 0.0)
    value = estimate(log_ratio, estimator)
    return _straight_through(value, k2(log_ratio)) if estimator.endswith("+") else value


def _straight_through(value: Tensor, gradient: Tensor) -> Tensor:
    return value.detach() + (gradient - gradient.detach())
