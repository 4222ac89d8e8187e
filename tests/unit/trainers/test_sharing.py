"""Prompts are shared only by models that compute the same numbers then."""

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from backends.trainers.torch.sharing import shareable_width

ATTENTION = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}


def _width(architecture: str, **values: Any) -> int | None:
    special = {"bos_token_id": None, "pad_token_id": None, "eos_token_id": None}
    config = AutoConfig.for_model(architecture, vocab_size=50, **special, **values)
    torch.manual_seed(0)
    return shareable_width(AutoModelForCausalLM.from_config(config).eval())


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gpt_neox"])
def test_positions_that_are_given_let_samples_share(architecture: str) -> None:
    heads = {} if architecture == "gpt_neox" else {"num_key_value_heads": 1}
    assert _width(architecture, **ATTENTION, **heads, num_hidden_layers=2) == 16


def test_learned_positions_let_samples_share() -> None:
    assert _width("gpt2", n_embd=16, n_layer=2, n_head=2) == 16


def test_positions_from_the_place_in_the_row_forbid_it() -> None:
    """ALiBi."""
    assert _width("bloom", hidden_size=16, n_layer=2, n_head=2) is None


def test_a_state_from_token_to_token_forbids_it() -> None:
    assert _width("mamba", hidden_size=16, num_hidden_layers=1, state_size=4) is None


def test_a_window_forbids_it() -> None:
    """The mask of a strip is used as it is, so a window would be lost where a strip is longer."""
    assert _width("mistral", **ATTENTION, num_hidden_layers=1, num_key_value_heads=1, sliding_window=8) is None
    assert _width("mistral", **ATTENTION, num_hidden_layers=1, num_key_value_heads=1, sliding_window=None) == 16
