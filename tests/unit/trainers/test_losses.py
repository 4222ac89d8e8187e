"""Worked numbers of the clipped loss, and the corners where it could stop being a number."""

import math

import pytest
import torch
from torch import Tensor

from backends.trainers.torch.losses import ClippedLoss, clipped_loss, score_tokens


def _loss(ratios: list[float], advantages: list[float], low: float = 0.2, high: float = 0.2) -> ClippedLoss:
    logprobs = torch.tensor(ratios).log()
    behaviour = torch.zeros(len(ratios))
    return clipped_loss(logprobs, behaviour, torch.tensor(advantages), clip_low=low, clip_high=high)


def test_worked_example_of_ppo() -> None:
    losses = _loss([0.5, 1.0, 1.5], [1.0, -1.0, 2.0])
    torch.testing.assert_close(losses.loss, -torch.tensor([0.5, -1.0, 2.4]))
    assert losses.loss.mean().item() == pytest.approx(-0.6333, abs=1e-4)
    torch.testing.assert_close(losses.ratio, torch.tensor([0.5, 1.0, 1.5]))
    assert losses.clipped.tolist() == [False, False, True]


def test_clipping_takes_the_gradient_only_where_it_would_go_further_away() -> None:
    logprobs = torch.tensor([0.5, 0.5, 1.5, 1.5]).log().requires_grad_()
    losses = clipped_loss(logprobs, torch.zeros(4), torch.tensor([1.0, -1.0, 1.0, -1.0]), clip_low=0.2, clip_high=0.2)
    losses.loss.sum().backward()
    assert logprobs.grad is not None
    torch.testing.assert_close(logprobs.grad, torch.tensor([-0.5, 0.0, 0.0, 1.5]))
    assert losses.clipped.tolist() == [False, True, True, False]


def test_the_two_bounds_are_independent() -> None:
    losses = _loss([0.1, 9.0], [-1.0, 1.0], low=0.4, high=0.28)
    torch.testing.assert_close(losses.loss, torch.tensor([0.6, -1.28]))


def test_on_policy_the_gradient_is_the_policy_gradient() -> None:
    """The loss itself is then minus the advantage, the same number whatever the policy."""
    logprobs = torch.tensor([-0.3, -2.0]).requires_grad_()
    losses = clipped_loss(logprobs, logprobs.detach(), torch.tensor([2.0, -3.0]), clip_low=0.2, clip_high=0.2)
    losses.loss.sum().backward()
    assert losses.loss.tolist() == [-2.0, 3.0]
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [-2.0, 3.0]
    assert losses.kl.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("advantage", [1.0, -1.0, 0.0])
@pytest.mark.parametrize("logprob", [500.0, -500.0])
def test_a_policy_that_ran_away_gives_finite_gradients(advantage: float, logprob: float) -> None:
    """An infinite ratio times the zero of the branch not taken is NaN, and NaN is in every parameter at once."""
    logprobs = torch.tensor([logprob]).requires_grad_()
    losses = clipped_loss(logprobs, torch.zeros(1), torch.tensor([advantage]), clip_low=0.2, clip_high=0.2)
    losses.loss.sum().backward()
    assert logprobs.grad is not None
    assert all(one.isfinite().all() for one in (losses.loss, losses.ratio, losses.kl, logprobs.grad))


def test_divergence_is_k3() -> None:
    losses = _loss([0.5, 2.0], [0.0, 0.0])
    expected = [0.5 - 1 - math.log(0.5), 2.0 - 1 - math.log(2.0)]
    assert losses.kl.tolist() == pytest.approx(expected)


def _reference(logits: Tensor, temperature: float) -> Tensor:
    return (logits.double() / temperature).softmax(-1)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_are_scored_at_the_temperature_they_were_drawn_at(temperature: float) -> None:
    logits = torch.tensor([[1.0, -2.0, 0.5], [0.0, 3.0, 0.0]])
    scores = score_tokens(logits, torch.tensor([2, 1]), torch.full((2,), temperature))
    probabilities = _reference(logits, temperature)
    torch.testing.assert_close(scores.logprobs.double(), probabilities[[0, 1], [2, 1]].log())
    torch.testing.assert_close(scores.entropy.double(), -(probabilities * probabilities.log()).sum(-1))
