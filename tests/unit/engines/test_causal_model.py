"""Binding a model to weights that somebody else owns."""

import pytest
import torch

from backends.engines.torch.model import CausalModel
from backends.models.loading import load_module, named_weights
from protocols.errors import InvariantError
from protocols.sections import Section
from tests.support.batches import GPT2, LLAMA, site

MODELS = pytest.mark.parametrize("model", [pytest.param(GPT2, id="gpt2"), pytest.param(LLAMA, id="llama")])


def causal(model: Section) -> CausalModel:
    return CausalModel(load_module(site(model)), context=None, deterministic=False)


@MODELS
def test_weights_are_bound_without_a_copy_and_tied_ones_stay_tied(model: Section) -> None:
    bound = causal(model)
    weights = {name: weight + 1 for name, weight in named_weights(load_module(site(model))).items()}
    bound.rebind(weights)
    parameters = dict(bound.module.named_parameters())
    assert {name: parameter.data_ptr() for name, parameter in parameters.items()} == {
        name: weight.data_ptr() for name, weight in weights.items()
    }
    head, embedding = bound.module.get_output_embeddings(), bound.module.get_input_embeddings()
    assert head is not None
    assert head.weight is embedding.weight


@MODELS
def test_weights_of_a_tied_model_are_named_once(model: Section) -> None:
    weights = named_weights(load_module(site(model)))
    pointers = [weight.data_ptr() for weight in weights.values()]
    assert len(set(pointers)) == len(pointers)
    assert not any(weight.requires_grad for weight in weights.values())


def test_a_misfit_changes_nothing() -> None:
    """The last name is wrong, so the first would have been bound by then."""
    bound = causal(GPT2)
    before = {name: weight.clone() for name, weight in named_weights(bound.module).items()}
    weights = {name: weight + 1 for name, weight in before.items()}
    last = list(weights)[-1]
    with pytest.raises(InvariantError, match=last):
        bound.rebind({**weights, last: weights[last][:1]})
    for name, weight in named_weights(bound.module).items():
        assert torch.equal(weight, before[name])
