"""The three estimators of a divergence: worked numbers, and what they estimate."""

import math

import pytest
import torch

from backends.trainers.torch.divergence import k1, k2, k3

P = torch.tensor([0.5, 0.3, 0.2])
Q = torch.tensor([0.4, 0.2, 0.4])
EXACT = (P * (P / Q).log()).sum().item()


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
