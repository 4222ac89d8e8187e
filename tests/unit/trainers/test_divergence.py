"""The three estimators of a divergence: worked numbers, what they estimate, and where their gradients lead."""

import math

import pytest
import torch
from torch import Tensor

from backends.trainers.torch.divergence import Estimator, k1, k2, k3, penalty

P = torch.tensor([0.5, 0.3, 0.2])
Q = torch.tensor([0.4, 0.2, 0.4])
EXACT = (P * (P / Q).log()).sum().item()
ESTIMATORS: tuple[Estimator, ...] = ("k1", "k2", "k3", "k1+", "k3+")
each_estimator = pytest.mark.parametrize("estimator", ESTIMATORS)


def test_worked_numbers() -> None:
    log_ratio = torch.tensor([0.5, 2.0]).log()
    assert k1(log_ratio).tolist() == pytest.approx([math.log(2), -math.log(2)])
    assert k2(log_ratio).tolist() == pytest.approx([math.log(2) ** 2 / 2] * 2)
    assert k3(log_ratio).tolist() == pytest.approx([0.5 - 1 + math.log(2), 2.0 - 1 - math.log(2)])


def test_those_of_skyrl() -> None:
    """Tokens drawn at 0.2 and 0.3 (as logarithms), and 0.1 and 0.2 in the other policy."""
    log_ratio = torch.tensor([0.1, 0.2]) - torch.tensor([0.2, 0.3])
    torch.testing.assert_close(k1(log_ratio), torch.tensor([0.1, 0.1]))
    torch.testing.assert_close(k2(log_ratio), torch.tensor([0.005, 0.005]))
    torch.testing.assert_close(k3(log_ratio), torch.full((2,), math.exp(-0.1) - 1 + 0.1))


@pytest.mark.parametrize("estimator", [k1, k3])
def test_two_have_the_divergence_as_their_expectation(estimator) -> None:
    assert (P * estimator((Q / P).log())).sum().item() == pytest.approx(EXACT, abs=1e-6)


def test_k2_is_near_it_where_the_policies_are() -> None:
    assert (P * k2((Q / P).log())).sum().item() == pytest.approx(EXACT, rel=0.1)
    assert EXACT > 0.05


@pytest.mark.parametrize("estimator", [k2, k3])
def test_two_are_never_negative_and_0_where_the_policies_agree(estimator) -> None:
    log_ratio = torch.linspace(-5, 5, 101)
    assert (estimator(log_ratio) >= 0).all()
    assert estimator(torch.zeros(1)).item() == 0


LOGPROBS = torch.tensor([-1.0, -2.0, -0.5])
REFERENCE = torch.tensor([-1.5, -1.0, -0.5])


def _penalty_and_gradient(estimator: Estimator) -> tuple[Tensor, Tensor]:
    logprobs = LOGPROBS.clone().requires_grad_()
    estimates = penalty(logprobs, REFERENCE, torch.ones(3), estimator)
    return estimates.detach(), torch.autograd.grad(estimates.sum(), logprobs)[0]


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_a_penalty_is_its_estimator(estimator: Estimator) -> None:
    """The policy is 0.5 more likely to draw the first token than the reference, 1 less the second; the third agrees."""
    estimates, gradient = _penalty_and_gradient(estimator)
    values = {"k1": [0.5, -1, 0], "k2": [0.125, 0.5, 0], "k3": [math.exp(-0.5) - 0.5, math.e - 2, 0]}
    slopes = {"k1": [1, 1, 1], "k2": [0.5, -1, 0], "k3": [1 - math.exp(-0.5), 1 - math.e, 0]}
    assert estimates.tolist() == pytest.approx(values[estimator])
    assert gradient.tolist() == pytest.approx(slopes[estimator])


@pytest.mark.parametrize(("estimator", "value"), [("k1+", "k1"), ("k3+", "k3")])
def test_straight_through_of_verl(estimator: Estimator, value: Estimator) -> None:
    """The value of one, the gradient of k2: log p - log q."""
    estimates, gradient = _penalty_and_gradient(estimator)
    torch.testing.assert_close(estimates, _penalty_and_gradient(value)[0])
    torch.testing.assert_close(gradient, LOGPROBS - REFERENCE)


@pytest.mark.parametrize(
    ("estimator", "divergence"),
    [("k1", "none"), ("k2", "of p"), ("k1+", "of p"), ("k3+", "of p"), ("k3", "of q")],
)
def test_where_gradients_lead(estimator: Estimator, divergence: str) -> None:
    """The expectation over all tokens, drawn as the policy draws them: arXiv 2510.01555."""
    logits = P.log().requires_grad_()
    policy = logits.log_softmax(-1)
    sampled = torch.dot(P, penalty(policy, Q.log(), torch.ones(3), estimator))
    exact = {
        "none": 0 * policy.sum(),
        "of p": (policy.exp() * (policy - Q.log())).sum(),
        "of q": (Q * (Q.log() - policy)).sum(),
    }[divergence]
    (gradient,) = torch.autograd.grad(sampled, logits, retain_graph=True)
    (expected,) = torch.autograd.grad(exact, logits)
    torch.testing.assert_close(gradient, expected, atol=1e-6, rtol=1e-5)


@each_estimator
@pytest.mark.parametrize("strange", [math.nan, math.inf, -math.inf])
def test_what_stands_under_a_mask_is_0(estimator: Estimator, strange: float) -> None:
    """SkyRL: NaN under the mask reached the mean, for NaN times 0 is NaN, and its gradient every parameter."""
    for place in ("policy", "reference"):
        logprobs, reference = LOGPROBS.clone(), REFERENCE.clone()
        (logprobs if place == "policy" else reference)[1] = strange
        logprobs.requires_grad_()
        weights = torch.tensor([1.0, 0.0, 0.5])
        estimates = penalty(logprobs, reference, weights, estimator)
        (gradient,) = torch.autograd.grad(torch.dot(weights, estimates), logprobs)
        assert estimates[1] == 0
        assert gradient[1] == 0
        assert estimates.isfinite().all()
        assert gradient.isfinite().all()
        torch.testing.assert_close(estimates[[0, 2]], _penalty_and_gradient(estimator)[0][[0, 2]])


@each_estimator
@pytest.mark.parametrize("distance", [500.0, -500.0])
def test_a_policy_that_ran_away_gives_finite_penalties(estimator: Estimator, distance: float) -> None:
    logprobs = torch.tensor([distance], requires_grad=True)
    estimates = penalty(logprobs, torch.zeros(1), torch.ones(1), estimator)
    (gradient,) = torch.autograd.grad(estimates.sum(), logprobs)
    assert estimates.isfinite().all()
    assert gradient.isfinite().all()
