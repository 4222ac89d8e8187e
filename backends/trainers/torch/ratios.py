"""Logarithms of probability ratios: the current policy over the one that drew the tokens, shape ``[N]``."""

from torch import Tensor

from backends.trainers.torch.sequences import Sequences

_LARGEST = 20.0
"""Beyond e^20 a ratio overflows, and inf * 0 in the gradient of a branch not taken is NaN."""


def of_tokens(logprobs: Tensor, behaviour: Tensor) -> Tensor:
    """Return each token's own."""
    return _bounded(logprobs - behaviour)


def of_sequences(logprobs: Tensor, behaviour: Tensor, sequences: Sequences) -> Tensor:
    """Return for each token that of its whole sample: the sum over the sample's tokens."""
    return _bounded(sequences.sums(logprobs - behaviour))


def of_sequence_means(logprobs: Tensor, behaviour: Tensor, sequences: Sequences) -> Tensor:
    """Return for each token that of its sample divided by the sample's length: of the geometric mean."""
    return _bounded(sequences.means(logprobs - behaviour))


def _bounded(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-_LARGEST, _LARGEST)
