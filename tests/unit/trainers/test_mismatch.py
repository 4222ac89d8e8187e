"""What tells that engines and trainer compute differently."""

import math

import pytest
import torch

from backends.trainers.torch import mismatch


def metrics_of(logprobs: torch.Tensor, behaviour: torch.Tensor) -> dict[str, float]:
    """Return the metrics of one pass over tokens of equal weight."""
    means = {name: values.mean().item() for name, values in mismatch.of_tokens(logprobs, behaviour).items()}
    return mismatch.concluded(means)


def test_equal_log_probabilities_agree() -> None:
    own = torch.tensor([-1.0, -2.0, -0.5])
    assert metrics_of(own, own) == {"mismatch/mean": 0.0, "mismatch/ratio": 1.0, "mismatch/ess": 1.0}


def test_worked_numbers() -> None:
    """Ratios 2 and 1/2: mean 1.25, mean of squares 2.125, so 1.5625 / 2.125 of the tokens count."""
    own, theirs = torch.tensor([-1.0, -1.0]), torch.tensor([-1.0 - math.log(2), -1.0 + math.log(2)])
    found = metrics_of(own, theirs)
    assert found["mismatch/mean"] == pytest.approx(math.log(2))
    assert found["mismatch/ratio"] == pytest.approx(1.25)
    assert found["mismatch/ess"] == pytest.approx(1.5625 / 2.125)


def test_tokens_without_weight_are_not_the_largest() -> None:
    own, theirs = torch.tensor([-1.0, -9.0]), torch.tensor([-1.5, -1.0])
    assert mismatch.largest(own, theirs, torch.tensor([1.0, 0.0])) == pytest.approx(0.5)
    assert mismatch.largest(own[:0], theirs[:0], own[:0]) == 0.0


def test_a_pass_without_tokens_disagrees_about_nothing() -> None:
    assert mismatch.concluded({"loss": 0.0})["mismatch/ess"] == 1.0
