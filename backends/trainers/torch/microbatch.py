"""Samples of like length share a forward pass, right-padded, within a budget of tokens."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from backends.trainers.torch.rows import Row
from backends.trainers.torch.sequences import Sequences


def pack(rows: Iterable[Row], budget: int) -> Iterator[Sequence[Row]]:
    """Split rows into micro-batches.

    The longest come first: what does not fit into memory fails at once. Rows of one length keep their order.

    Args:
        rows: In any order.
        budget: Most tokens of a micro-batch, padding counted; a longer row is one of its own.
    """
    rest = sorted(rows, key=lambda row: row.width, reverse=True)
    while rest:
        count = max(1, budget // rest[0].width)
        yield rest[:count]
        rest = rest[count:]


class MicroBatch(NamedTuple):
    """Tensors of one forward pass: ``B`` rows, ``W`` positions, ``N`` completion tokens.

    Right padding needs no attention mask: under causal attention no token sees what stands behind it.

    Attributes:
        input_ids: Shape ``[B, W]``, padded with token 0.
        predicts: Positions whose logits predict a completion token, shape ``[B, W]``, ``N`` of them true.
        targets: The predicted tokens, row by row, shape ``[N]``, like all that follow.
        behaviour: Log-probabilities when they were drawn.
        advantages: Dimensionless.
        weights: Above 0.
        temperature: They were drawn at.
        sequences: Which of them belong to which row.
    """

    input_ids: Tensor
    predicts: Tensor
    targets: Tensor
    behaviour: Tensor
    advantages: Tensor
    weights: Tensor
    temperature: Tensor
    sequences: Sequences


def collate(rows: Sequence[Row], device: torch.device) -> MicroBatch:
    """Build the tensors of one micro-batch. Python touches each token once."""
    lengths = np.array([len(row.completion) for row in rows])
    widths = np.array([row.width for row in rows])
    positions = np.arange(widths.max())
    read = positions < widths[:, None]
    input_ids = np.zeros(read.shape, dtype=np.int64)
    tokens = chain.from_iterable(chain(row.prompt, row.completion[:-1]) for row in rows)
    input_ids[read] = np.fromiter(tokens, dtype=np.int64, count=int(widths.sum()))

    def flat(values: Iterable[Any], dtype: Any) -> Tensor:
        array = np.fromiter(values, dtype=dtype, count=int(lengths.sum()))
        return torch.from_numpy(array).to(device)

    def spread(values: Sequence[float]) -> Tensor:
        return torch.from_numpy(np.repeat(np.array(values, dtype=np.float32), lengths)).to(device)

    return MicroBatch(
        input_ids=torch.from_numpy(input_ids).to(device),
        predicts=torch.from_numpy(read & (positions >= (widths - lengths)[:, None])).to(device),
        targets=flat(chain.from_iterable(row.completion for row in rows), np.int64),
        behaviour=flat(chain.from_iterable(row.behaviour for row in rows), np.float32),
        advantages=spread([row.advantage for row in rows]),
        weights=spread([row.weight for row in rows]),
        temperature=spread([row.temperature for row in rows]),
        sequences=Sequences(
            owner=torch.from_numpy(np.repeat(np.arange(len(rows)), lengths)).to(device),
            lengths=torch.from_numpy(lengths.astype(np.float32)).to(device),
        ),
    )
