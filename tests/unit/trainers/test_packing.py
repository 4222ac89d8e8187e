"""Packing loses no sample, keeps to its budget, and shares prompts where that is worth it."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from backends.trainers.torch.packing import pack, useful_tokens
from backends.trainers.torch.rows import Row


def row(prompt: int, completion: int, temperature: float = 1.0) -> Row:
    return Row(
        prompt=(1,) * prompt,
        completion=(2,) * completion,
        behaviour=(-1.0,) * completion,
        advantage=1.0,
        reward=1.0,
        weight=1.0,
        temperature=temperature,
    )


rows = st.lists(st.builds(row, st.integers(1, 9), st.integers(1, 9), st.sampled_from([0.5, 1.0])), max_size=30)
budgets = st.integers(1, 60)
widths = st.one_of(st.none(), st.integers(1, 64))


def cost(prompt: int, tokens: int, hidden: int) -> int:
    """Return what a strip costs, in units of ``4 h`` operations."""
    return (prompt + tokens) * (6 * hidden + prompt + tokens)


@given(rows, budgets, widths)
def test_every_row_is_in_one_micro_batch_and_none_is_over_budget(
    rows: list[Row], budget: int, hidden: int | None
) -> None:
    parts = list(pack(rows, budget, hidden=hidden))
    packed = [row for part in parts for strip in part for row in strip.rows]
    assert sorted(map(id, packed)) == sorted(map(id, rows))
    for part in parts:
        alone = len(part) == 1 and len(part[0].rows) == 1
        assert alone or len(part) * max(strip.width for strip in part) <= budget


@given(rows, budgets, widths)
def test_no_two_neighbours_would_fit_together(rows: list[Row], budget: int, hidden: int | None) -> None:
    for part, after in pairwise(pack(rows, budget, hidden=hidden)):
        assert (len(part) + 1) * max(strip.width for strip in (*part, after[0])) > budget


@given(rows, budgets, widths)
def test_a_strip_has_one_prompt_and_one_temperature(rows: list[Row], budget: int, hidden: int | None) -> None:
    for part in pack(rows, budget, hidden=hidden):
        for strip in part:
            assert len({(row.prompt, row.temperature) for row in strip.rows}) == 1
            assert strip.width == len(strip.rows[0].prompt) + sum(len(row.completion) - 1 for row in strip.rows)
            assert hidden is not None or len(strip.rows) == 1


def test_rows_of_one_length_keep_their_order() -> None:
    given_rows = [row(3, 4) for _ in range(6)]
    ((strip,),) = pack(given_rows, 1000, hidden=1000)
    assert [id(one) for one in strip.rows] == [id(one) for one in given_rows]


@given(st.integers(1, 500), st.integers(1, 500))
def test_no_other_length_of_a_strip_costs_less_for_each_token(prompt: int, hidden: int) -> None:
    best = useful_tokens(prompt, hidden)
    for other in (1, max(1, best // 2), best + 2, 2 * best, 10 * best):
        assert cost(prompt, best, hidden) / best <= cost(prompt, other, hidden) / other * (1 + 1 / best)


def test_a_long_prompt_is_shared_and_a_short_one_before_long_completions_is_not() -> None:
    assert useful_tokens(95, 576) == 580  # 8 completions of 12 tokens: all of them
    assert useful_tokens(16, 64) == 80  # 16 of 4: all of them
    assert useful_tokens(100, 64) < 2 * 500  # of 500 tokens: one a strip
