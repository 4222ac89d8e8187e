"""Worked numbers of the losses, other projects' among them, and the corners where one could stop being a number."""

import math

import pytest
import torch
from torch import Tensor

from backends.trainers.torch.losses import TokenLoss, cispo, clipped_surrogate, reinforce


def _clipped(
    ratios: list[float], advantages: list[float], low: float = 0.2, high: float = 0.2, dual: float | None = None
) -> TokenLoss:
    return clipped_surrogate(torch.tensor(ratios).log(), torch.tensor(advantages), low=low, high=high, dual=dual)


def test_clip_of_nemo_rl() -> None:
    """PPO: the third token's ratio of 1.5 counts as 1.2."""
    losses = _clipped([0.5, 1.0, 1.5], [1.0, -1.0, 2.0])
    torch.testing.assert_close(losses.loss, -torch.tensor([0.5, -1.0, 2.4]))
    assert losses.loss.mean().item() == pytest.approx(-0.6333, abs=1e-4)
    torch.testing.assert_close(losses.ratio, torch.tensor([0.5, 1.0, 1.5]))
    assert losses.clipped.tolist() == [False, False, True]


def test_clipping_takes_the_gradient_only_where_it_would_go_further_away() -> None:
    log_ratio = torch.tensor([0.5, 0.5, 1.5, 1.5]).log().requires_grad_()
    losses = clipped_surrogate(log_ratio, torch.tensor([1.0, -1.0, 1.0, -1.0]), low=0.2, high=0.2)
    torch.testing.assert_close(_gradient(losses, log_ratio), torch.tensor([-0.5, 0.0, 0.0, 1.5]))
    assert losses.clipped.tolist() == [False, True, True, False]


def test_the_two_bounds_are_independent() -> None:
    losses = _clipped([0.1, 9.0], [-1.0, 1.0], low=0.4, high=0.28)
    torch.testing.assert_close(losses.loss, torch.tensor([0.6, -1.28]))


def test_dual_clip_of_skyrl() -> None:
    """A token of advantage -4 that became ten times as likely loses 3 x 4, not 10 x 4."""
    losses = _clipped([0.5, 1.0, 10.0], [1.0, -1.0, -4.0], dual=3.0)
    torch.testing.assert_close(losses.loss, torch.tensor([-0.5, 1.0, 12.0]))
    assert losses.loss.sum().item() == pytest.approx(12.5)
    assert losses.clipped.tolist() == [False, False, True]


def test_dual_clip_takes_the_gradient_only_of_bad_tokens_that_ran_away() -> None:
    log_ratio = torch.tensor([5.0, 2.0, 0.5, 5.0]).log().requires_grad_()
    losses = clipped_surrogate(log_ratio, torch.tensor([-1.0, -1.0, -1.0, 1.0]), low=0.2, high=9.0, dual=3.0)
    torch.testing.assert_close(_gradient(losses, log_ratio), torch.tensor([0.0, 2.0, 0.0, -5.0]))
    assert losses.clipped.tolist() == [True, False, True, False]


def _cispo(ratios: list[float], low: float, high: float) -> list[float]:
    """Return the weights, as the gradient shows them."""
    log_ratio = torch.tensor(ratios).log()
    logprobs = torch.full((len(ratios),), -1.0, requires_grad=True)
    losses = cispo(logprobs, log_ratio, torch.ones(len(ratios)), low=low, high=high)
    return (-_gradient(losses, logprobs)).tolist()


def test_cispo_of_skyrl() -> None:
    logprobs, behaviour = torch.tensor([-1.69315, -1.0, -0.69741]), torch.tensor([-1.0, -1.0, -3.0])
    losses = cispo(logprobs, logprobs - behaviour, torch.tensor([1.0, -1.0, -4.0]), low=0.2, high=0.2)
    torch.testing.assert_close(losses.loss, torch.tensor([1.35452, -1.0, -3.347568]))
    assert losses.clipped.tolist() == [True, False, True]


def test_cispo_of_slime() -> None:
    """The weights are clipped on both sides; with ``low`` 1 there is no lower bound."""
    assert _cispo([1.0, 1.14, 1.56, 0.4], 0.2, 0.28) == pytest.approx([1.0, 1.14, 1.28, 0.8])
    assert _cispo([1.0, 3.0, 9.0, 0.4], 1.0, 4.0) == pytest.approx([1.0, 3.0, 5.0, 0.4])


def test_cispo_has_no_gradient_through_the_ratio() -> None:
    """Every token keeps a gradient, that of its logarithm times the weight."""
    logprobs = torch.tensor([-0.1, -0.5, -3.0]).requires_grad_()
    losses = cispo(logprobs, logprobs + 1.0, torch.tensor([1.0, 1.0, -2.0]), low=0.2, high=0.2)
    torch.testing.assert_close(_gradient(losses, logprobs), torch.tensor([-1.2, -1.2, 1.6]))


def test_reinforce_of_nemo_rl() -> None:
    """Without weights, minus advantage times logarithm, wherever the tokens come from."""
    logprobs = torch.tensor([-0.5, -1.0, -1.5])
    losses = reinforce(logprobs, torch.tensor([0.7, 0.0, -0.7]), torch.tensor([1.0, -1.0, 2.0]))
    assert losses.loss.mean().item() == pytest.approx(0.8333, abs=1e-4)
    assert not losses.clipped.any()


@pytest.mark.parametrize("advantage", [2.0, -3.0])
def test_on_policy_all_losses_have_the_policy_gradient(advantage: float) -> None:
    advantages = torch.full((2,), advantage)
    behaviour = torch.tensor([-0.3, -2.0])
    for loss in (
        lambda logprobs, log_ratio: clipped_surrogate(log_ratio, advantages, low=0.2, high=0.2),
        lambda logprobs, log_ratio: clipped_surrogate(log_ratio, advantages, low=0.2, high=0.2, dual=3.0),
        lambda logprobs, log_ratio: cispo(logprobs, log_ratio, advantages, low=0.2, high=0.2),
        lambda logprobs, log_ratio: reinforce(logprobs, log_ratio, advantages),
    ):
        logprobs = behaviour.clone().requires_grad_()
        assert _gradient(loss(logprobs, logprobs - behaviour), logprobs).tolist() == [-advantage, -advantage]


def test_the_loss_of_clip_on_policy_is_minus_the_advantage() -> None:
    """The same number whatever the policy."""
    assert math.isclose(_clipped([1.0], [3.0]).loss.item(), -3.0)


def _gradient(losses: TokenLoss, at: Tensor) -> Tensor:
    (gradient,) = torch.autograd.grad(losses.loss.sum(), at)
    return gradient
