"""From the losses of tokens to the loss of a batch.

Every denominator is the whole batch's, so loss and gradients do not depend on how it is ordered or split.
"""

from collections.abc import Iterable
from typing import NamedTuple, Self

from torch import Tensor

from backends.trainers.torch.options import Aggregation
from backends.trainers.torch.rows import Row
from backends.trainers.torch.sequences import Sequences


class Totals(NamedTuple):
    """Of all samples of a batch that take part.

    Attributes:
        tokens: Weight of their tokens.
        samples: Weight of the samples themselves.
    """

    tokens: float
    samples: float

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Self:
        """Add up the weights of ``rows``."""
        weights = [(row.weight * len(row.completion), row.weight) for row in rows]
        return cls(sum(tokens for tokens, _ in weights), sum(samples for _, samples in weights))


def token_shares(
    weights: Tensor, sequences: Sequences, totals: Totals, aggregation: Aggregation, length: int | None
) -> Tensor:
    """Return each token's share in the loss of the batch, which is the sum of losses times shares.

    Args:
        weights: Of the tokens' samples, shape ``[N]``.
        sequences: Which tokens belong to which sample.
        totals: Of the whole batch.
        aggregation: ``token``: the mean over all tokens. ``sequence``: the mean over samples of the mean over their
            tokens. ``constant``: the mean over samples of the sum over their tokens divided by ``length``.
        length: In tokens, for ``constant``.

    Source:
        Tokens: DAPO, arXiv 2503.14476; sequences: GRPO, arXiv 2402.03300; a constant: Dr. GRPO, arXiv 2503.20783.
    """
    match aggregation:
        case "token":
            return weights / totals.tokens
        case "sequence":
            return weights / (sequences.lengths[sequences.owner] * totals.samples)
        case "constant":
            assert length is not None
            return weights / (length * totals.samples)
