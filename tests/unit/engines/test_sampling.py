"""From logits to tokens."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from backends.engines.torch.sampling import Laws, keep_likeliest

LOGITS = st.lists(st.floats(-8, 8, width=32), min_size=2, max_size=12)


def floats(values: list[float]) -> NDArray[np.float32]:
    return np.array(values, dtype=np.float32)


def laws(rows: int, *, temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0) -> Laws:
    return Laws(
        np.full(rows, temperature, dtype=np.float32),
        np.full(rows, top_p, dtype=np.float32),
        np.full(rows, top_k, dtype=np.int64),
    )


def drawn_evenly(logits: list[float], count: int, **law: Any) -> NDArray[np.float64]:
    """Return the share of each token over evenly spread uniform numbers."""
    uniforms = ((np.arange(count) + 0.5) / count).astype(np.float32)
    rows = torch.tensor(logits).expand(count, -1)
    tokens, _ = laws(count, **law).draw(rows, uniforms)
    return np.bincount(tokens, minlength=len(logits)) / count


@given(LOGITS, st.floats(0.25, 4))
def test_tokens_are_drawn_by_their_chance(logits: list[float], temperature: float) -> None:
    chances = (torch.tensor(logits) / temperature).softmax(-1).numpy()
    assert np.abs(drawn_evenly(logits, 2000, temperature=temperature) - chances).max() < 2e-3


@given(LOGITS, st.integers(1, 12))
def test_top_k_keeps_the_likeliest_in_their_proportions(logits: list[float], top_k: int) -> None:
    chances = torch.tensor(logits).softmax(-1).double().numpy()
    kept = np.argsort(-chances, kind="stable")[:top_k]
    want = np.zeros_like(chances)
    want[kept] = chances[kept] / chances[kept].sum()
    assert np.abs(drawn_evenly(logits, 2000, top_k=top_k) - want).max() < 2e-3


@given(LOGITS, st.floats(0.05, 1), st.integers(0, 12))
def test_top_p_keeps_the_smallest_set_that_reaches_it(logits: list[float], top_p: float, top_k: int) -> None:
    chances = torch.tensor([logits], dtype=torch.float64).softmax(-1)
    kept = keep_likeliest(chances, torch.tensor([[top_k]]), torch.tensor([[top_p]], dtype=torch.float64))[0]
    by_number = chances[0].sort(descending=True).values[: top_k or None]
    size = int((kept > 0).sum())
    share = top_p * float(by_number.sum())
    assert kept.max() == chances.max(), "the likeliest always stays"
    assert float(kept.sum()) >= share - 1e-9
    assert float(by_number[: size - 1].sum()) < share + 1e-9, "one less would not have reached it"
    assert size <= (top_k or len(logits))


@given(LOGITS, st.floats(0.25, 4), st.floats(0.05, 1), st.integers(0, 12))
def test_log_probabilities_are_those_before_any_cut(
    logits: list[float], temperature: float, top_p: float, top_k: int
) -> None:
    row = torch.tensor([logits])
    tokens, logprobs = laws(1, temperature=temperature, top_p=top_p, top_k=top_k).draw(row, floats([0.4]))
    want = (row / temperature).log_softmax(-1)[0, tokens[0]]
    assert logprobs[0] == pytest.approx(float(want), abs=1e-5)


@given(LOGITS)
def test_temperature_zero_takes_the_likeliest_at_its_plain_probability(logits: list[float]) -> None:
    row = torch.tensor([logits])
    tokens, logprobs = laws(1, temperature=0.0).draw(row, floats([0.999]))
    assert tokens[0] == int(row.argmax())
    assert logprobs[0] == pytest.approx(float(row.log_softmax(-1)[0, tokens[0]]), abs=1e-5)


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-24])
def test_a_token_without_a_chance_is_never_drawn(uniform: float) -> None:
    """The ends of the unit interval are where an inverted distribution goes wrong."""
    width = 50
    allowed = torch.arange(10, 40, 3)
    logits = torch.full((64, width), -math.inf)
    logits[:, allowed] = torch.randn(64, len(allowed), generator=torch.Generator().manual_seed(0)) * 5
    tokens, logprobs = laws(64).draw(logits, np.full(64, uniform, dtype=np.float32))
    assert set(tokens.tolist()) <= set(allowed.tolist())
    assert np.isfinite(logprobs).all()


def test_of_equally_likely_tokens_the_first_are_kept() -> None:
    """An order that the sorting routine is free to choose would not be the same on the next machine."""
    chances = torch.full((3, 5000), 1 / 5000)
    kept = keep_likeliest(chances, torch.full((3, 1), 7), torch.ones(3, 1))
    assert all(row.nonzero()[:, 0].tolist() == list(range(7)) for row in kept)


def test_each_row_follows_its_own_law() -> None:
    """A row's draw must not depend on whether its neighbours are cut, scaled or greedy."""
    logits = torch.randn(4, 30, generator=torch.Generator().manual_seed(1)) * 3
    uniforms = floats([0.1, 0.5, 0.7, 0.9])
    temperature, top_p, top_k = floats([1, 0, 0.5, 1]), floats([1, 1, 0.7, 0.9]), np.array([0, 0, 0, 5])
    together, _ = Laws(temperature, top_p, top_k).draw(logits, uniforms)
    for row in range(4):
        one = slice(row, row + 1)
        alone, _ = Laws(temperature[one], top_p[one], top_k[one]).draw(logits[one], uniforms[one])
        assert alone[0] == together[row]


def test_logits_that_are_not_finite_are_an_error() -> None:
    with pytest.raises(FloatingPointError):
        laws(1).draw(torch.tensor([[1.0, math.nan, 2.0]]), floats([0.9]))
