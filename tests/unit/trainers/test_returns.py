"""Returns and advantages of tokens: numbers of other projects' tests, and laws against a plain double loop."""

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from backends.trainers.torch.returns import discounted_returns, gae, token_rewards, whiten
from backends.trainers.torch.sequences import Sequences

Sample = list[tuple[float, float]]
"""Reward and value of each token."""

REWARDS = torch.tensor([1.0, 2.0, 3.0])
VALUES = torch.tensor([0.5, 1.0, 1.5])

numbers = st.floats(-3, 3, width=32)
shares = st.sampled_from([0.0, 0.3, 0.5, 0.95, 1.0])
samples = st.lists(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=9), min_size=1, max_size=6)


def _sequences(*lengths: int) -> Sequences:
    owners = [at for at, length in enumerate(lengths) for _ in range(length)]
    return Sequences(owner=torch.tensor(owners), lengths=torch.tensor(lengths, dtype=torch.float32))


def _flat(batch: list[Sample]) -> tuple[Tensor, Tensor, Sequences]:
    rewards, values = torch.tensor([token for sample in batch for token in sample], dtype=torch.float64).unbind(-1)
    return rewards, values, _sequences(*map(len, batch))


def _estimates(batch: list[Sample], gamma: float, lam: float) -> Tensor:
    """Return advantages and returns side by side, shape ``[N, 2]``."""
    rewards, values, sequences = _flat(batch)
    return torch.stack(gae(rewards, values, sequences, gamma, lam), dim=-1)


def test_the_outcome_belongs_to_the_last_token_of_each_sample() -> None:
    rewards = token_rewards(torch.tensor([2.0, -1.0, 0.5]), _sequences(3, 1, 2))
    assert rewards.tolist() == [0, 0, 2, -1, 0, 0.5]


def test_a_penalty_is_taken_at_every_token() -> None:
    kl = torch.tensor([1.0, 2.0, -1.0])
    rewards = token_rewards(torch.tensor([1.0, 0.0]), _sequences(2, 1), kl, 0.1)
    torch.testing.assert_close(rewards, torch.tensor([-0.1, 0.8, 0.1]))


def test_returns_of_reinforce_plus_plus_of_skyrl() -> None:
    """Behind the end of a sample the sum starts anew: [3, 2] and [3]."""
    assert discounted_returns(REWARDS, _sequences(2, 1), 1.0).tolist() == [3, 2, 3]
    assert discounted_returns(REWARDS, _sequences(3), 0.5).tolist() == [2.75, 3.5, 3]


@pytest.mark.parametrize(
    ("gamma", "lam", "expected"), [(1.0, 1.0, [6, 5, 3]), (0.5, 1.0, [2.75, 3.5, 3]), (1.0, 0.5, [3.625, 4.25, 3])]
)
def test_returns_of_gae_of_skyrl(gamma: float, lam: float, expected: list[float]) -> None:
    estimates = gae(REWARDS, VALUES, _sequences(3), gamma, lam)
    assert estimates.returns.tolist() == expected
    torch.testing.assert_close(estimates.advantages, torch.tensor(expected) - VALUES)


def test_whitened_advantages_of_skyrl() -> None:
    """The middle token is masked: mean (5.5 + 1.5) / 2, variance (4 + 4) / (2 - 1)."""
    advantages = gae(REWARDS, VALUES, _sequences(3), 1.0, 1.0).advantages
    assert advantages.tolist() == [5.5, 4, 1.5]
    white = whiten(advantages, torch.tensor([1.0, 0.0, 1.0]))
    torch.testing.assert_close(white, torch.tensor([0.7071, 0.1768, -0.7071]), atol=1e-4, rtol=0)


def test_targets_have_no_gradient() -> None:
    """A critic that is trained on what itself computed must not move its target."""
    estimates = gae(REWARDS, VALUES.clone().requires_grad_(), _sequences(3), 0.9, 0.9)
    assert not any(each.requires_grad for each in estimates)


@given(batch=samples, gamma=shares, lam=shares)
def test_gae_is_that_of_a_plain_double_loop(batch: list[Sample], gamma: float, lam: float) -> None:
    expected: list[tuple[float, float]] = []
    for sample in batch:
        surprises = [
            reward + gamma * (sample[at + 1][1] if at + 1 < len(sample) else 0.0) - value
            for at, (reward, value) in enumerate(sample)
        ]
        for at, (_, value) in enumerate(sample):
            advantage = sum((gamma * lam) ** k * surprise for k, surprise in enumerate(surprises[at:]))
            expected.append((advantage, advantage + value))
    torch.testing.assert_close(_estimates(batch, gamma, lam), torch.tensor(expected, dtype=torch.float64))


@given(batch=samples, gamma=shares)
def test_returns_are_those_of_a_plain_double_loop(batch: list[Sample], gamma: float) -> None:
    rewards, _, sequences = _flat(batch)
    expected = [
        sum(gamma**k * reward for k, (reward, _) in enumerate(sample[at:]))
        for sample in batch
        for at in range(len(sample))
    ]
    torch.testing.assert_close(
        discounted_returns(rewards, sequences, gamma), torch.tensor(expected, dtype=torch.float64)
    )


@given(batch=samples)
def test_undiscounted_returns_are_rewards_to_go(batch: list[Sample]) -> None:
    """Whatever the critic says: with gamma and lambda 1 its values cancel out."""
    rewards, _, sequences = _flat(batch)
    to_go = torch.cat([part.flip(0).cumsum(0).flip(0) for part in rewards.split([len(sample) for sample in batch])])
    torch.testing.assert_close(_estimates(batch, 1.0, 1.0)[:, 1], to_go)
    torch.testing.assert_close(discounted_returns(rewards, sequences, 1.0), to_go)


@given(batch=samples, gamma=shares, lam=shares, data=st.data())
def test_chunked_gae_is_plain_gae(batch: list[Sample], gamma: float, lam: float, data: st.DataObject) -> None:
    """Slime: what one rank computes for its shard of the samples does not depend on the others'."""
    cut = data.draw(st.integers(0, len(batch)))
    parts = [_estimates(part, gamma, lam) for part in (batch[:cut], batch[cut:]) if part]
    torch.testing.assert_close(torch.cat(parts), _estimates(batch, gamma, lam))


@given(batch=samples, gamma=shares, lam=shares, data=st.data())
def test_the_order_of_samples_does_not_matter(
    batch: list[Sample], gamma: float, lam: float, data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(batch))))
    lengths = [len(sample) for sample in batch]
    parts = _estimates(batch, gamma, lam).split(lengths)
    shuffled = _estimates([batch[at] for at in order], gamma, lam)
    torch.testing.assert_close(shuffled, torch.cat([parts[at] for at in order]))


def test_long_samples_lose_no_accuracy() -> None:
    rewards = torch.randn(5000, generator=torch.Generator().manual_seed(0))
    sequences = _sequences(4000, 1000)
    exact = discounted_returns(rewards.double(), sequences, 0.999)
    torch.testing.assert_close(discounted_returns(rewards, sequences, 0.999).double(), exact, atol=1e-4, rtol=1e-5)


def test_nothing_has_no_returns() -> None:
    empty = Sequences(owner=torch.zeros(0, dtype=torch.int64), lengths=torch.zeros(0))
    assert token_rewards(torch.zeros(0), empty).shape == (0,)
    assert gae(torch.zeros(0), torch.zeros(0), empty, 1.0, 1.0).returns.shape == (0,)
    assert whiten(torch.zeros(0), torch.zeros(0)).shape == (0,)


weighted = st.lists(st.tuples(numbers, st.sampled_from([0.0, 0.5, 1.0, 1.0, 2.0])), min_size=1, max_size=30)


@given(tokens=weighted, data=st.data())
def test_whitening_ignores_order_and_the_scale_of_weights(
    tokens: list[tuple[float, float]], data: st.DataObject
) -> None:
    values, weights = torch.tensor(tokens).unbind(-1)
    order = torch.tensor(data.draw(st.permutations(range(len(tokens)))))
    white = whiten(values, weights)
    torch.testing.assert_close(whiten(values[order], 4 * weights[order]), white[order], atol=1e-5, rtol=1e-5)


@given(tokens=weighted)
def test_whitened_values_have_mean_0_and_deviation_1(tokens: list[tuple[float, float]]) -> None:
    values, weights = torch.tensor(tokens, dtype=torch.float64).unbind(-1)
    counted = values[weights > 0]
    assume(len(counted) > 1 and counted.std() > 0.1)
    white = whiten(values, weights)
    assert torch.dot(weights, white).item() == pytest.approx(0, abs=1e-9)
    freedom = weights.sum() - weights.square().sum() / weights.sum()
    assert (torch.dot(weights, white.square()) / freedom).item() == pytest.approx(1, rel=1e-5)
    if set(weights.tolist()) <= {0.0, 1.0}:
        assert white[weights > 0].std().item() == pytest.approx(1, rel=1e-5)


@pytest.mark.parametrize("values", [[7.3], [100.1] * 7, [0.1] * 3])
@pytest.mark.parametrize("weight", [1.0, 0.3])
def test_values_that_agree_are_0(values: list[float], weight: float) -> None:
    white = whiten(torch.tensor(values), torch.full((len(values),), weight))
    assert white.tolist() == pytest.approx([0.0] * len(values), abs=1e-6)


def test_what_has_no_weight_spoils_nothing() -> None:
    values = torch.tensor([1.0, math.nan, 3.0, math.inf])
    white = whiten(values, torch.tensor([1.0, 0.0, 1.0, 0.0]))
    torch.testing.assert_close(white[[0, 2]], torch.tensor([-0.7071, 0.7071]), atol=1e-4, rtol=0)
    assert whiten(values[[0, 2]], torch.zeros(2)).isfinite().all()
