"""Estimators of the divergence ``D(p || q)`` from tokens drawn from ``p``.

Each takes ``log q - log p`` of the drawn tokens, shape ``[N]``, and returns one estimate a token, shape ``[N]``, in
nats; their mean estimates the divergence.

Source:
    J. Schulman, "Approximating KL divergence", 2020.
"""

from torch import Tensor


def k1(log_ratio: Tensor) -> Tensor:
    """Return ``-log r``: without bias, of high variance, negative for half of the tokens."""
    return -log_ratio


def k2(log_ratio: Tensor) -> Tensor:
    """Return ``(log r)^2 / 2``: biased, of low variance; its gradient has no bias where ``p`` is being trained."""
    return log_ratio.square() / 2


def k3(log_ratio: Tensor) -> Tensor:
    """Return ``r - 1 - log r``: without bias, of low variance, never negative."""
    return log_ratio.exp() - 1 - log_ratio
