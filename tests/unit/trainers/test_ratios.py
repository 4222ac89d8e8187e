"""Ratios of tokens and of whole samples, and that none becomes infinite."""

import pytest
import torch

from backends.trainers.torch import ratios
from backends.trainers.torch.losses import cispo, clipped_surrogate, reinforce
from backends.trainers.torch.sequences import Sequences

LOGPROBS = torch.tensor([-1.0, -1.5, -0.5, -2.0])
BEHAVIOUR = torch.tensor([-1.5, -1.0, -1.5, -5.0])
TWO = Sequences(owner=torch.tensor([0, 0, 0, 1]), lengths=torch.tensor([3.0, 1.0]))


def test_ratios_of_tokens() -> None:
    torch.testing.assert_close(ratios.of_tokens(LOGPROBS, BEHAVIOUR), torch.tensor([0.5, -0.5, 1.0, 3.0]))


def test_ratios_of_gspo_are_geometric_means() -> None:
    log_ratio = ratios.of_sequence_means(LOGPROBS, BEHAVIOUR, TWO)
    torch.testing.assert_close(log_ratio, torch.tensor([1 / 3, 1 / 3, 1 / 3, 3.0]))


def test_the_gradient_of_gspo_is_one_ratio_for_all_tokens_of_a_sample() -> None:
    """Each token gets ``s A / T`` from each of the sample's ``T`` copies of the ratio ``s``: ``s A`` in all."""
    logprobs = LOGPROBS.clone().requires_grad_()
    log_ratio = ratios.of_sequence_means(logprobs, BEHAVIOUR, TWO)
    losses = clipped_surrogate(log_ratio, torch.tensor([2.0, 2.0, 2.0, -1.0]), low=0.5, high=0.5)
    (gradient,) = torch.autograd.grad(losses.loss.sum(), logprobs)
    ratio = log_ratio.detach().exp()
    torch.testing.assert_close(gradient, torch.tensor([-2.0, -2.0, -2.0, 1.0]) * ratio)


@pytest.mark.parametrize("advantage", [1.0, -1.0, 0.0])
@pytest.mark.parametrize("logprob", [500.0, -500.0])
@pytest.mark.parametrize("ratio", ["of_tokens", "of_sequences", "of_sequence_means"])
def test_a_policy_that_ran_away_gives_finite_gradients(advantage: float, logprob: float, ratio: str) -> None:
    """An infinite ratio times the zero of the branch not taken is NaN, and NaN is in every parameter at once."""
    one = () if ratio == "of_tokens" else (Sequences(owner=torch.tensor([0]), lengths=torch.tensor([1.0])),)
    for dual in (None, 3.0):
        logprobs = torch.tensor([logprob]).requires_grad_()
        log_ratio = getattr(ratios, ratio)(logprobs, torch.zeros(1), *one)
        advantages = torch.tensor([advantage])
        for losses in (
            clipped_surrogate(log_ratio, advantages, low=0.2, high=0.2, dual=dual),
            cispo(logprobs, log_ratio, advantages, low=0.2, high=0.2),
            reinforce(logprobs, log_ratio, advantages),
        ):
            (gradient,) = torch.autograd.grad(losses.loss.sum(), logprobs, retain_graph=True)
            assert all(each.isfinite().all() for each in (losses.loss, losses.ratio, gradient))
