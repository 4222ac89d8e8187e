"""The critic and its loss."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from backends.models.loading import load_module
from backends.trainers.torch.values import Critic, value_loss
from protocols.sections import Section
from tests.support.batches import GPT2, LLAMA, VOCABULARY, site

QWEN2 = Section(kind="scratch", options={**LLAMA.options, "architecture": "qwen2"})
MODELS = [pytest.param(GPT2, id="gpt2"), pytest.param(LLAMA, id="llama"), pytest.param(QWEN2, id="qwen2")]
each_model = pytest.mark.parametrize("model", MODELS)

IDS = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 0, 0]])
INDEX = torch.tensor([1, 2, 3, 5, 6])


def _opinionated(model: Section) -> Critic:
    """Return a critic whose values differ from one another."""
    critic = Critic(load_module(site(model)))
    with torch.no_grad():
        critic.head.weight.copy_(torch.linspace(-1, 1, critic.head.in_features))
        critic.head.bias.fill_(0.25)
    return critic


def test_the_larger_error_counts() -> None:
    """Old values 1, bound 0.5: a value of 2 counts as 1.5 where that is the larger error, and never the other way."""
    values = torch.tensor([1.2, 2.0, 2.0, 0.0], requires_grad=True)
    losses = value_loss(values, torch.ones(4), torch.tensor([2.0, 3.0, 0.0, 0.0]), 0.5)
    torch.testing.assert_close(losses.loss, torch.tensor([0.32, 1.125, 2.0, 0.125]))
    assert losses.clipped.tolist() == [False, True, False, True]
    (gradient,) = torch.autograd.grad(losses.loss.sum(), values)
    torch.testing.assert_close(gradient, torch.tensor([-0.8, 0.0, 2.0, 0.0]))


def test_without_a_bound_it_is_half_of_the_squared_error() -> None:
    values = torch.tensor([1.0, -2.0], requires_grad=True)
    losses = value_loss(values, torch.zeros(2), torch.tensor([3.0, -2.5]), None)
    assert losses.loss.tolist() == [2.0, 0.125]
    assert not losses.clipped.any()
    (gradient,) = torch.autograd.grad(losses.loss.sum(), values)
    assert gradient.tolist() == [-2.0, 0.5]


def test_a_value_that_stays_near_its_old_one_is_never_clipped() -> None:
    """Old value plus difference is not always the value again: rounding must not count as clipping."""
    random = torch.Generator().manual_seed(0)
    old, values = torch.randn(2, 1000, generator=random)
    assert (old + (values - old) != values).any()
    losses = value_loss(values, old, torch.zeros(1000), 9.0)
    assert not losses.clipped.any()
    assert torch.equal(losses.loss, value_loss(values, old, torch.zeros(1000), None).loss)


@each_model
def test_a_new_critic_expects_nothing_and_learns(model: Section) -> None:
    critic = Critic(load_module(site(model)))
    optimizer = torch.optim.AdamW(critic.parameters(), lr=1e-2, weight_decay=0.0)
    returns = torch.tensor([1.0, 0.5, -1.0, 0.0, 2.0])
    losses: list[float] = []
    for _ in range(60):
        values = critic(IDS, None, None, INDEX)
        assert values.shape == (5,)
        loss = value_loss(values, values.detach(), returns, None).loss.mean()
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[0] == pytest.approx(returns.square().mean().item() / 2)
    assert losses[-1] < 0.05 * losses[0]


@each_model
def test_values_are_those_of_single_rows(model: Section) -> None:
    """No padding, and no row, is seen by another."""
    critic = _opinionated(model)
    together = critic(IDS, None, None, INDEX)
    alone = [
        critic(IDS[:1], None, None, torch.tensor([1, 2, 3])),
        critic(IDS[1:, :3], None, None, torch.tensor([0, 1])),
    ]
    torch.testing.assert_close(together, torch.cat(alone))
    assert together.unique().numel() == 5


@each_model
def test_it_reads_what_the_policy_reads(model: Section) -> None:
    """Two samples of one prompt in one row, apart by mask and positions, are worth what they are alone."""
    critic = _opinionated(model)
    prompt, first, second = [1, 2, 3], [4, 5], [6, 7, 8]
    owner = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])
    seen = (owner[:, None] == owner) | (owner == 0)
    mask = (seen & torch.ones(8, 8, dtype=torch.bool).tril())[None, None]
    positions = torch.tensor([[0, 1, 2, 3, 4, 3, 4, 5]])
    shared = critic(torch.tensor([prompt + first + second]), positions, mask, torch.arange(3, 8))
    alone = [
        critic(torch.tensor([prompt + sample]), None, None, torch.arange(3, 3 + len(sample)))
        for sample in (first, second)
    ]
    torch.testing.assert_close(shared, torch.cat(alone))


@each_model
def test_a_saved_critic_comes_back(model: Section, tmp_path: Path) -> None:
    critic = _opinionated(model)
    save_file(critic.state_dict(), tmp_path / "critic.safetensors")
    other = Critic(load_module(site(model)))
    other.load_state_dict(load_file(tmp_path / "critic.safetensors"))
    assert torch.equal(other(IDS, None, None, INDEX), critic(IDS, None, None, INDEX))


def test_it_has_no_output_layer_and_draws_nothing() -> None:
    """An untied output layer would be as large as the rest of a small model, and learn nothing."""
    untied = {**LLAMA.options, "config": {**LLAMA.options["config"], "tie_word_embeddings": False}}
    module: Any = load_module(site(Section(kind="scratch", options=untied)))
    parameters = sum(parameter.numel() for parameter in module.parameters())
    state = torch.random.get_rng_state()
    critic = Critic(module)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert sum(parameter.numel() for parameter in critic.parameters()) == parameters - 16 * VOCABULARY + 16 + 1


def test_it_computes_in_float32() -> None:
    critic = Critic(load_module(site(GPT2)).bfloat16())
    assert critic(IDS, None, None, INDEX).dtype == torch.float32
    assert {parameter.dtype for parameter in critic.parameters()} == {torch.float32}
