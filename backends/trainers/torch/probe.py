"""What the parameters make of a few fixed tokens, for engines to be compared with."""

from typing import Any

import torch

from protocols.inference import Probe

TOKENS = 16
_STRIDE = 7919  # a prime: the tokens are spread over any vocabulary


@torch.no_grad()
def probe_of(module: Any) -> Probe:
    """Compute the log-probabilities of fixed tokens.

    Args:
        module: A Hugging Face causal language model, with the parameters that are published.
    """
    vocabulary = module.get_input_embeddings().num_embeddings
    context = getattr(module.config.get_text_config(), "max_position_embeddings", None) or TOKENS + 1
    token_ids = tuple(_STRIDE * place % vocabulary for place in range(1, min(TOKENS, context - 1) + 1))
    ids = torch.tensor([token_ids], device=module.device)
    logits = module(input_ids=ids, use_cache=False).logits[0, :-1].float()
    logprobs = logits.log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
    return Probe(token_ids=token_ids, logprobs=tuple(logprobs.tolist()))
