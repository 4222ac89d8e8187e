"""Log-probabilities and entropies of drawn tokens, against double precision."""

import pytest
import torch
from torch import Tensor

from backends.trainers.torch.scores import score_tokens


def _reference(logits: Tensor, temperature: float) -> Tensor:
    return (logits.double() / temperature).softmax(-1)


def test_samples_that_begin_at_one_position_share_its_logits() -> None:
    logits = torch.tensor([[1.0, -2.0, 0.5], [0.0, 3.0, 0.0]])
    source, targets = torch.tensor([0, 1, 0]), torch.tensor([2, 1, 0])
    shared = score_tokens(logits, torch.tensor([1.0, 0.5]), source, targets, entropy_gradient=False)
    alone = score_tokens(
        logits[source], torch.tensor([1.0, 0.5, 1.0]), torch.arange(3), targets, entropy_gradient=False
    )
    assert torch.equal(shared.logprobs, alone.logprobs)
    assert torch.equal(shared.entropy, alone.entropy)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_are_scored_at_the_temperature_they_were_drawn_at(temperature: float) -> None:
    logits = torch.tensor([[1.0, -2.0, 0.5], [0.0, 3.0, 0.0]])
    scores = score_tokens(
        logits, torch.full((2,), temperature), torch.tensor([0, 1]), torch.tensor([2, 1]), entropy_gradient=False
    )
    probabilities = _reference(logits, temperature)
    torch.testing.assert_close(scores.logprobs.double(), probabilities[[0, 1], [2, 1]].log())
    torch.testing.assert_close(scores.entropy.double(), -(probabilities * probabilities.log()).sum(-1))


def test_the_entropy_has_a_gradient_where_it_is_asked_for() -> None:
    """Uphill leads to the uniform distribution."""
    logits = torch.tensor([[2.0, 0.0, -1.0]], requires_grad=True)
    temperature, source, targets = torch.ones(1), torch.tensor([0]), torch.tensor([0])
    assert not score_tokens(logits, temperature, source, targets, entropy_gradient=False).entropy.requires_grad
    (uphill,) = torch.autograd.grad(
        score_tokens(logits, temperature, source, targets, entropy_gradient=True).entropy.sum(), logits
    )
    logprobs = logits.detach().log_softmax(-1)
    entropy = -(logprobs.exp() * logprobs).sum()
    torch.testing.assert_close(uphill, -logprobs.exp() * (logprobs + entropy))
