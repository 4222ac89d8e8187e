"""What the current policy says of the tokens that were drawn.

``N`` is the number of completion tokens, ``M`` that of positions which predict them, ``V`` the size of the vocabulary.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Scores(NamedTuple):
    """Of each token.

    Attributes:
        logprobs: Shape ``[N]``, natural logarithms.
        entropy: Of the whole distribution at each token, shape ``[N]``, nats.
    """

    logprobs: Tensor
    entropy: Tensor


def score_tokens(
    logits: Tensor, temperature: Tensor, source: Tensor, targets: Tensor, *, entropy_gradient: bool
) -> Scores:
    """Score the tokens that were drawn.

    Args:
        logits: Shape ``[M, V]``.
        temperature: The tokens that they predict were drawn at, shape ``[M]``, above 0.
        source: Which logits predict each token, shape ``[N]``.
        targets: Ids of the tokens, shape ``[N]``.
        entropy_gradient: Whether the entropy has a gradient; it costs memory, ``M x V`` numbers twice.
    """
    logprobs = torch.log_softmax(logits / temperature.unsqueeze(-1), dim=-1)
    with torch.set_grad_enabled(entropy_gradient):
        entropy = -(logprobs.exp() * logprobs).sum(-1)
    return Scores(logprobs[source, targets], entropy[source])
