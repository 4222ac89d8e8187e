"""What the current policy says of the tokens that were drawn.

``N`` is the number of completion tokens, ``V`` the size of the vocabulary.
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


def score_tokens(logits: Tensor, targets: Tensor, temperature: Tensor, *, entropy_gradient: bool) -> Scores:
    """Score the tokens that were drawn.

    Args:
        logits: Shape ``[N, V]``, each predicting one token.
        targets: Ids of these tokens, shape ``[N]``.
        temperature: They were drawn at, shape ``[N]``, above 0.
        entropy_gradient: Whether the entropy has a gradient; it costs memory, ``N x V`` numbers twice.
    """
    logprobs = torch.log_softmax(logits / temperature.unsqueeze(-1), dim=-1)
    with torch.set_grad_enabled(entropy_gradient):
        entropy = -(logprobs.exp() * logprobs).sum(-1)
    return Scores(logprobs.gather(-1, targets.unsqueeze(-1)).squeeze(-1), entropy)
