"""Weights that correct for tokens which another policy drew, and that leave out those which went too far.

All take the logarithm of a ratio, the trained or the proximal policy over the one that drew the tokens, as
``ratios.py`` computes it, shape ``[N]``, and return factors of the tokens' weights. Factors of several functions
multiply: those of ``reject_tokens`` times the ratio itself are IcePop's.

A token of factor 0 has no gradient. Whether it still counts in the denominators of an aggregation is up to who adds
them up: it does in AReaL and NeMo RL, it does not in verl and slime.
"""

from typing import Literal, NamedTuple

from torch import Tensor

from backends.trainers.torch.sequences import Sequences

Measure = Literal["mean", "worst"]


class Correction(NamedTuple):
    """Of each token; neither has a gradient.

    Attributes:
        weights: Factor of the token's weight, at least 0, shape ``[N]``.
        limited: Whether a bound changed it, shape ``[N]``; their sum is a number of tokens.
    """

    weights: Tensor
    limited: Tensor


def reject_tokens(log_ratio: Tensor, *, low: float, high: float) -> Correction:
    """Leave out tokens whose ratio lies outside ``[low, high]``; a ratio that is no number lies outside.

    Args:
        log_ratio: Of tokens, shape ``[N]``.
        low: At least 0, dimensionless.
        high: Above ``low``.

    Returns:
        Weights of 0 and 1.

    Source:
        IcePop, Ring-1T, arXiv 2510.18855; usual there: 0.5 to 5.
    """
    return _without(_outside(log_ratio, low, high))


def reject_sequences(
    log_ratio: Tensor, sequences: Sequences, *, low: float, high: float, measure: Measure = "mean"
) -> Correction:
    """Leave out whole samples, by the ratios of their tokens.

    Args:
        log_ratio: Of tokens, shape ``[N]``.
        sequences: Which tokens belong to which sample.
        low: At least 0, dimensionless.
        high: Above ``low``.
        measure: What must lie in ``[low, high]``: the geometric ``mean`` of the ratios, or each of them, and
            so the ``worst``.

    Returns:
        Weights of 0 and 1, the same for all tokens of a sample.

    Source:
        J. Liu et al., "When speed kills stability", 2025; NeMo RL's ``seq-mask-tis``, AReaL's level ``sequence``.
    """
    if measure == "mean":
        return _without(_outside(sequences.means(log_ratio), low, high))
    return _without(sequences.sums(_outside(log_ratio, low, high).to(log_ratio.dtype)) > 0)


def decoupled(log_ratio: Tensor, *, cap: float) -> Correction:
    """Weigh with the truncated ratio of the proximal policy over the one that drew the tokens.

    The clipped surrogate then reads the ratio of the trained policy over the proximal one: how far a step may
    go no longer depends on how old the tokens are.

    Args:
        log_ratio: Proximal policy over behaviour policy, of tokens, or of whole samples, shape ``[N]``.
        cap: A weight is at most this, above 0.

    Source:
        arXiv 2110.00641; of language models: AReaL, arXiv 2505.24298, equation 5.
    """
    ratio = log_ratio.detach().exp()
    return Correction(ratio.clamp(max=cap), ratio > cap)


def _outside(log_ratio: Tensor, low: float, high: float) -> Tensor:
    ratio = log_ratio.detach().exp()
    return ~((ratio >= low) & (ratio <= high))


def _without(rejected: Tensor) -> Correction:
    return Correction((~rejected).float(), rejected)
