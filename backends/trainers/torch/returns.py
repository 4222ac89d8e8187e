"""From the rewards of samples to returns and advantages of tokens. Pure functions of flat tensors, without gradients.

A batch has ``B`` samples with ``N`` completion tokens in all, as ``Sequences`` describes them: those of a sample lie
one after the other. Each sample ends with its last token, so nothing comes back from behind it.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from backends.trainers.torch.sequences import Sequences

_LEAST_VARIANCE = 1e-8
"""Added to a variance: deviations far below 1e-4 are noise, and must not be blown up to 1."""


class Estimates(NamedTuple):
    """Of each token, in units of the reward.

    Attributes:
        advantages: How much better it was than the critic thought, shape ``[N]``.
        returns: What the critic should have thought, shape ``[N]``.
    """

    advantages: Tensor
    returns: Tensor


def token_rewards(rewards: Tensor, sequences: Sequences, kl: Tensor | None = None, kl_coef: float = 0.0) -> Tensor:
    """Return each token's reward: the sample's for its last token, and for each token minus the penalty.

    Args:
        rewards: Of the samples, shape ``[B]``.
        sequences: Which tokens belong to which sample.
        kl: Estimate of the divergence from the reference at each token, shape ``[N]``, nats; None: no penalty.
        kl_coef: Reward that a nat costs.

    Returns:
        Shape ``[N]``.

    Source:
        arXiv 1909.08593; with ``k1`` as the estimate: REINFORCE++, arXiv 2501.03262.
    """
    owner = sequences.owner
    is_last = torch.diff(owner, append=owner.new_full((1,), -1)) != 0
    outcomes = torch.where(is_last, rewards[owner], 0.0)
    return outcomes if kl is None else outcomes - kl_coef * kl


def discounted_returns(rewards: Tensor, sequences: Sequences, gamma: float) -> Tensor:
    """Return the sum of each token's reward and of those behind it in the sample, discounted.

    Args:
        rewards: Of the tokens, shape ``[N]``.
        sequences: Which tokens belong to which sample.
        gamma: What a reward one token later counts, 0 to 1.

    Returns:
        Shape ``[N]``. ``whiten`` makes REINFORCE++'s advantages of it.

    Source:
        REINFORCE++, arXiv 2501.03262.
    """
    # log2(N) rounds: after each, a token's sum reaches over twice as many tokens as before
    sums, reach = rewards, 1
    while reach < len(rewards):
        sums = sums + gamma**reach * _later(sums, sequences, reach)
        reach *= 2
    return sums


def gae(rewards: Tensor, values: Tensor, sequences: Sequences, gamma: float, lam: float) -> Estimates:
    """Estimate advantages with the help of a critic.

    Args:
        rewards: Of the tokens, shape ``[N]``.
        values: What the critic expects when it has seen all that stands before the token, shape ``[N]``; behind the
            last one it is 0.
        sequences: Which tokens belong to which sample.
        gamma: What a reward one token later counts, 0 to 1.
        lam: 1 trusts rewards alone, 0 the critic's next value; between, less bias or less variance.

    Source:
        arXiv 1506.02438, equations 11 to 16.
    """
    values = values.detach()
    surprises = rewards + gamma * _later(values, sequences, 1) - values
    advantages = discounted_returns(surprises, sequences, gamma * lam)
    return Estimates(advantages, advantages + values)


def whiten(values: Tensor, weights: Tensor, add_up: Callable[[Tensor], Tensor] = torch.Tensor.clone) -> Tensor:
    """Shift and scale to a mean of 0 and a standard deviation of 1. Takes all tokens of a batch at once.

    With ``W`` the sum of the weights, the mean divides by ``W`` and the variance by ``W - sum(weights^2) / W``: where
    every weight is 0 or 1, by the number of tokens that count and by one less. The scale of the weights is
    of no account. Below a variance of about 1e-8 the result tends to 0, and is 0 where all values agree.

    Args:
        values: Shape ``[N]``. What has no weight changes no other token's result, even if it is not finite.
        weights: At least 0, shape ``[N]``.
        add_up: Adds up a tensor over all who hold a part of the batch.

    Returns:
        Shape ``[N]``; what has no weight is shifted and scaled as the others.
    """
    shares = weights.double()  # sums in float32 would make noise of values that agree
    counted = torch.where(shares > 0, values, 0.0)
    least = torch.finfo(shares.dtype).tiny
    sums = add_up(torch.stack([shares.sum(), (shares * counted).sum(), shares.square().sum()]))
    total = sums[0].clamp(min=least)
    mean = sums[1] / total
    freedom = (total - sums[2] / total).clamp(min=least)
    variance = add_up((shares * (counted - mean).square()).sum()) / freedom
    return (values - mean) * torch.rsqrt(variance + _LEAST_VARIANCE)


def _later(values: Tensor, sequences: Sequences, steps: int) -> Tensor:
    """Return for each token the value ``steps`` tokens later in its sample, 0 where that has ended."""
    owner = sequences.owner
    later = torch.zeros_like(values)
    later[:-steps] = torch.where(owner[steps:] == owner[:-steps], values[steps:], 0.0)
    return later
