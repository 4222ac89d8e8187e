"""Models with adapters, for tests that peft decides about."""

import importlib.util
from typing import Any

import pytest
import torch

from protocols.sections import Section

needs_peft = pytest.mark.skipif(
    importlib.util.find_spec("peft") is None, reason="peft is missing: pip install 'conductor-rl[lora]'"
)


def with_lora(model: Section, **fields: Any) -> Section:
    """Give a model of the job adapters, of rank 8 beside all linear layers unless ``fields`` say otherwise."""
    return Section(kind=model.kind, options={**model.options, "lora": fields})


@torch.no_grad()
def stir(module: Any, seed: int = 0) -> None:
    """Change all adapters: fresh ones compute nothing."""
    chance = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.add_(torch.randn(parameter.shape, generator=chance), alpha=0.1)
