"""Reductions of other projects' tests, and that no part of a batch has to know how it was split."""

import pytest
import torch

from backends.trainers.torch.aggregation import Totals, token_shares
from backends.trainers.torch.options import Aggregation
from backends.trainers.torch.rows import Row
from backends.trainers.torch.sequences import Sequences

AGGREGATIONS: tuple[Aggregation, ...] = ("token", "sequence", "constant")


def _sequences(samples: list[list[float]]) -> Sequences:
    owners = [at for at, sample in enumerate(samples) for _ in sample]
    return Sequences(owner=torch.tensor(owners), lengths=torch.tensor([float(len(sample)) for sample in samples]))


def _totals(samples: list[list[float]]) -> Totals:
    return Totals(tokens=float(sum(map(len, samples))), samples=float(len(samples)))


def _reduced(
    samples: list[list[float]], aggregation: Aggregation, length: int | None = None, totals: Totals | None = None
) -> float:
    losses = torch.tensor([float(loss) for sample in samples for loss in sample])
    totals = totals or _totals(samples)
    shares = token_shares(torch.ones_like(losses), _sequences(samples), totals, aggregation, length)
    return torch.dot(shares, losses).item()


def test_tokens_of_skyrl() -> None:
    assert _reduced([[1, 2], [4, 5, 6]], "token") == pytest.approx(3.6)


def test_sequences_of_skyrl() -> None:
    assert _reduced([[1, 2], [3]], "sequence") == pytest.approx(2.25)


def test_a_constant_of_skyrl() -> None:
    """Dr. GRPO: (2 + 3) / 10 and 9 / 10, a mean of 0.7."""
    assert _reduced([[2, 3], [9]], "constant", 10) == pytest.approx(0.7)


def test_micro_batches_add_up_to_the_mean_of_the_whole() -> None:
    """SkyRL's legacy mean of micro-batch means makes 8.5 of these; the mean of their tokens is 64 / 7."""
    samples = [[2.0, 4.0], [6.0], [10.0, 12.0], [14.0, 16.0]]
    parts = [_reduced(part, "token", totals=_totals(samples)) for part in (samples[:2], samples[2:])]
    assert sum(parts) == pytest.approx(64 / 7)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_equal_losses_of_equal_lengths_are_the_loss(aggregation: Aggregation) -> None:
    assert _reduced([[3.0] * 4, [3.0] * 4], aggregation, 4 if aggregation == "constant" else None) == pytest.approx(3)


def test_totals_count_weights() -> None:
    def row(tokens: int, weight: float) -> Row:
        return Row(
            prompt=(1,),
            completion=(2,) * tokens,
            behaviour=(-1.0,) * tokens,
            advantage=1.0,
            reward=0.0,
            weight=weight,
            temperature=1.0,
        )

    assert Totals.of([row(3, 1.0), row(1, 0.5)]) == (3.5, 1.5)
    assert Totals.of([]) == (0, 0)
