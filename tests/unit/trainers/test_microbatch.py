"""Packing loses no sample and keeps to its budget; a worked example of the tensors."""

from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from backends.trainers.torch.microbatch import collate, pack
from backends.trainers.torch.rows import Row


def _row(prompt: int, completion: int) -> Row:
    return Row(
        prompt=(1,) * prompt,
        completion=(2,) * completion,
        behaviour=(-1.0,) * completion,
        advantage=1.0,
        weight=1.0,
        temperature=1.0,
    )


rows = st.lists(st.builds(_row, st.integers(1, 9), st.integers(1, 9)), max_size=30)


@given(rows, st.integers(1, 60))
def test_every_row_is_in_one_micro_batch_and_none_is_over_budget(rows: list[Row], budget: int) -> None:
    parts = list(pack(rows, budget))
    assert sorted(row.width for part in parts for row in part) == sorted(row.width for row in rows)
    for part in parts:
        assert len(part) == 1 or len(part) * max(row.width for row in part) <= budget


@given(rows, st.integers(1, 60))
def test_no_two_neighbours_would_fit_together(rows: list[Row], budget: int) -> None:
    parts = list(pack(rows, budget))
    for part, after in pairwise(parts):
        assert (len(part) + 1) * max(row.width for row in (*part, after[0])) > budget


def test_tensors_of_two_rows() -> None:
    long = Row(
        prompt=(1, 2), completion=(3, 4, 5), behaviour=(-0.1, -0.2, -0.3), advantage=2.0, weight=1.0, temperature=1.0
    )
    short = Row(prompt=(6,), completion=(7,), behaviour=(-0.4,), advantage=-1.0, weight=0.5, temperature=2.0)
    micro = collate([long, short], torch.device("cpu"))
    assert micro.input_ids.tolist() == [[1, 2, 3, 4], [6, 0, 0, 0]]
    assert micro.predicts.tolist() == [[False, True, True, True], [True, False, False, False]]
    assert micro.targets.tolist() == [3, 4, 5, 7]
    torch.testing.assert_close(micro.behaviour, torch.tensor([-0.1, -0.2, -0.3, -0.4]))
    assert micro.advantages.tolist() == [2.0, 2.0, 2.0, -1.0]
    assert micro.weights.tolist() == [1.0, 1.0, 1.0, 0.5]
    assert micro.temperature.tolist() == [1.0, 1.0, 1.0, 2.0]
