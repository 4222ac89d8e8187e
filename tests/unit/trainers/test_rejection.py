"""Which tokens are left out, and how much the others weigh: numbers of other projects' tests and issues."""

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from backends.trainers.torch import ratios
from backends.trainers.torch.losses import clipped_surrogate
from backends.trainers.torch.rejection import decoupled, reject_sequences, reject_tokens
from backends.trainers.torch.sequences import Sequences

THREE_AND_TWO = Sequences(owner=torch.tensor([0, 0, 0, 1, 1]), lengths=torch.tensor([3.0, 2.0]))

samples = st.lists(st.lists(st.floats(-2, 2, width=32), min_size=1, max_size=6), min_size=1, max_size=5)


def _flat(batch: list[list[float]]) -> tuple[torch.Tensor, Sequences]:
    lengths = torch.tensor([len(sample) for sample in batch])
    owner = torch.repeat_interleave(torch.arange(len(batch)), lengths)
    return torch.tensor([one for sample in batch for one in sample]), Sequences(owner, lengths.float())


@pytest.mark.parametrize(("log_ratio", "low"), [(1.0, 0.0), (-1.0, 0.5)])
def test_tokens_outside_of_areal(log_ratio: float, low: float) -> None:
    """A ratio of e is above 2, one of 1/e below 0.5."""
    correction = reject_tokens(torch.tensor([0.0, log_ratio, 0.0]), low=low, high=2.0)
    assert correction.weights.tolist() == [1, 0, 1]
    assert correction.limited.tolist() == [False, True, False]


def test_icepop_keeps_the_ratio_of_what_it_keeps() -> None:
    """The numbers of slime PR#657: three of five ratios lie outside [0.5, 2]."""
    log_ratio = torch.tensor([0.1, -1.5, 0.8, -10.0, 0.3])
    correction = reject_tokens(log_ratio, low=0.5, high=2.0)
    assert correction.weights.tolist() == [1, 0, 0, 0, 1]
    assert correction.limited.sum().item() == 3
    weighted = correction.weights * log_ratio.exp()
    torch.testing.assert_close(weighted, torch.tensor([1.1052, 0, 0, 0, 1.3499]), atol=1e-4, rtol=0)
    assert (weighted.sum() / correction.weights.sum()).item() == pytest.approx(1.23, abs=0.005)


def test_the_bounds_themselves_lie_inside() -> None:
    assert reject_tokens(torch.zeros(2), low=1.0, high=2.0).weights.tolist() == [1, 1]
    assert reject_tokens(torch.zeros(2), low=0.5, high=1.0).weights.tolist() == [1, 1]


def test_samples_by_their_geometric_mean_of_areal() -> None:
    """Log-ratios 0, 4, 0 make e^(4/3) = 3.79, above 3; of 0, .6, .3 the mean is e^.3, below 5."""
    log_ratio = torch.tensor([0.0, 4.0, 0.0, 0.0, 0.0])
    correction = reject_sequences(log_ratio, THREE_AND_TWO, low=0.0, high=3.0)
    assert correction.weights.tolist() == [0, 0, 0, 1, 1]
    assert correction.limited.tolist() == [True, True, True, False, False]
    assert reject_sequences(log_ratio, THREE_AND_TWO, low=0.0, high=3.8).weights.tolist() == [1] * 5
    mild = torch.tensor([0.0, 0.6, 0.3, 0.0, 0.0])
    assert not reject_sequences(mild, THREE_AND_TWO, low=0.0, high=5.0).limited.any()
    assert reject_sequences(-log_ratio, THREE_AND_TWO, low=0.3, high=3.0).weights.tolist() == [0, 0, 0, 1, 1]


def test_samples_by_their_worst_token() -> None:
    """One token that went far away is lost in the mean of a long sample, not in the worst."""
    log_ratio = torch.tensor([0.0, 1.0, -1.0, 0.0, -0.1])
    assert not reject_sequences(log_ratio, THREE_AND_TWO, low=0.5, high=2.0).limited.any()
    for low, high in ((0.5, 9.0), (0.0, 2.0)):
        correction = reject_sequences(log_ratio, THREE_AND_TWO, low=low, high=high, measure="worst")
        assert correction.weights.tolist() == [0, 0, 0, 1, 1]


@given(batch=samples, low=st.floats(0, 1), high=st.floats(1, 5))
def test_rejections_are_those_of_a_plain_loop(batch: list[list[float]], low: float, high: float) -> None:
    log_ratio, sequences = _flat(batch)

    def inside(log: float) -> float:
        return float(low <= math.exp(log) <= high)

    means = [math.fsum(sample) / len(sample) for sample in batch]
    near = [abs(math.exp(log) - bound) < 1e-4 for log in [*means, *log_ratio.tolist()] for bound in (low, high)]
    assume(not any(near))
    by_token = reject_tokens(log_ratio, low=low, high=high)
    by_mean = reject_sequences(log_ratio, sequences, low=low, high=high)
    by_worst = reject_sequences(log_ratio, sequences, low=low, high=high, measure="worst")
    assert by_token.weights.tolist() == [inside(log) for sample in batch for log in sample]
    assert by_mean.weights.tolist() == [inside(mean) for sample, mean in zip(batch, means, strict=True) for _ in sample]
    assert by_worst.weights.tolist() == [min(map(inside, sample)) for sample in batch for _ in sample]
    for correction in (by_token, by_mean, by_worst):
        assert torch.equal(correction.weights, 1 - correction.limited.float())
    assert (by_worst.weights <= by_token.weights).all()


@pytest.mark.parametrize("log_ratio", [math.nan, math.inf, -math.inf])
def test_a_ratio_that_is_no_number_lies_outside(log_ratio: float) -> None:
    values = torch.tensor([0.0, log_ratio, 0.0, 0.0, 0.0])
    assert reject_tokens(values, low=0.1, high=10.0).weights.tolist() == [1, 0, 1, 1, 1]
    for measure in ("mean", "worst"):
        correction = reject_sequences(values, THREE_AND_TWO, low=0.1, high=10.0, measure=measure)
        assert correction.weights.tolist() == [0, 0, 0, 1, 1]


def test_a_rejected_token_has_no_gradient() -> None:
    logprobs = torch.tensor([-1.0, 60.0, -2.0], requires_grad=True)
    log_ratio = ratios.of_tokens(logprobs, torch.tensor([-1.0, -60.0, -1.5]))
    correction = reject_tokens(log_ratio, low=0.5, high=2.0)
    losses = clipped_surrogate(log_ratio, torch.ones(3), low=0.9, high=9.0)
    (gradient,) = torch.autograd.grad(torch.dot(correction.weights, losses.loss), logprobs)
    torch.testing.assert_close(gradient, torch.tensor([-1.0, 0.0, -math.exp(-0.5)]))
    assert not correction.weights.requires_grad


def test_decoupled_weights_of_areal() -> None:
    """Ratios 1, 7.39 and 0.61: the second is cut to 5."""
    correction = decoupled(torch.tensor([0.0, 2.0, -0.5]), cap=5.0)
    torch.testing.assert_close(correction.weights, torch.tensor([1.0, 5.0, 0.6065]), atol=1e-4, rtol=0)
    assert correction.limited.tolist() == [False, True, False]


def test_a_decoupled_loss_worked_by_hand() -> None:
    """Now over proximal 1.5 and clipped to 1.2, proximal over behaviour 3 and cut to 2: 1.2 x 2 x advantage."""
    behaviour = torch.tensor([-3.0, -3.0])
    proximal = behaviour + torch.tensor([3.0, 0.5]).log()
    logprobs = (proximal + torch.tensor([1.5, 1.1]).log()).requires_grad_()
    weights = decoupled(ratios.of_tokens(proximal, behaviour), cap=2.0).weights
    losses = clipped_surrogate(ratios.of_tokens(logprobs, proximal), torch.tensor([1.0, 2.0]), low=0.2, high=0.2)
    torch.testing.assert_close(weights * losses.loss, torch.tensor([-2.4, -1.1]))
    (gradient,) = torch.autograd.grad(torch.dot(weights, losses.loss), logprobs)
    torch.testing.assert_close(gradient, torch.tensor([0.0, -1.1]))


def test_before_the_first_update_decoupled_is_truncated_importance_sampling() -> None:
    """The trained policy is the proximal one: what is left is the policy gradient with the capped ratio."""
    behaviour, advantages = torch.tensor([-1.0, -2.0, -0.5]), torch.tensor([1.0, -2.0, 0.5])
    logprobs = torch.tensor([-0.2, -2.5, -0.4], requires_grad=True)
    weights = decoupled(ratios.of_tokens(logprobs, behaviour), cap=2.0).weights
    surrogate = clipped_surrogate(ratios.of_tokens(logprobs, logprobs.detach()), advantages, low=0.2, high=0.2)
    (gradient,) = torch.autograd.grad(torch.dot(weights, surrogate.loss), logprobs)
    torch.testing.assert_close(gradient, torch.tensor([-2.0, 2 * math.exp(-0.5), -0.5 * math.exp(0.1)]))
