"""Whether a model computes the same numbers where several samples share their prompt's tokens."""

from typing import Any

import torch
from torch import Tensor

from backends.trainers.torch.microbatch import collate
from backends.trainers.torch.packing import Strip
from backends.trainers.torch.rows import Row

_SAME = 1e-3
"""Differences of logits: of the order of 1e-6 where only the order of additions differs, of 1 where attention does."""


@torch.no_grad()
def shareable_width(module: Any) -> int | None:
    """Return the model's width, or None where its samples must not share a strip.

    It is tried: a model may take positions from where a token stands (ALiBi), carry a state from token to token
    (Mamba), or look back over a window only, and not every one says so.

    Args:
        module: A Hugging Face causal language model.
    """
    config = module.config.get_text_config()
    if _looks_back_over_a_window(config):  # which the mask of a strip would take away
        return None
    last = module.get_input_embeddings().num_embeddings - 1
    rows = [_row((0, last, 1), (last, 0, 1)), _row((0, last, 1), (1, 1, last))]
    together = Strip(tuple(rows))
    try:
        apart = torch.cat([_logits(module, Strip((row,))) for row in rows])
        same = torch.allclose(_logits(module, together), apart, atol=_SAME * float(apart.abs().max().clamp(min=1)))
    except (TypeError, ValueError, RuntimeError, IndexError):  # it takes no such mask, or no positions
        return None
    return int(config.hidden_size) if same else None


def _looks_back_over_a_window(config: Any) -> bool:
    kinds = getattr(config, "layer_types", None) or ("sliding_attention",)
    window = getattr(config, "sliding_window", None)
    return bool(window) and "sliding_attention" in kinds


def _row(prompt: tuple[int, ...], completion: tuple[int, ...]) -> Row:
    return Row(
        prompt=prompt,
        completion=completion,
        behaviour=(0.0,) * len(completion),
        advantage=0.0,
        reward=0.0,
        weight=1.0,
        temperature=1.0,
    )


def _logits(module: Any, strip: Strip) -> Tensor:
    """Return the logits that predict each token of a strip's samples."""
    micro = collate([strip], module.device)
    return module(**micro.inputs(), use_cache=False, logits_to_keep=micro.predicts).logits[micro.source]
