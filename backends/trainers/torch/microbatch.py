"""Strips of like length share a forward pass, right-padded."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backends.trainers.torch.packing import Strip
from backends.trainers.torch.sequences import Sequences


class MicroBatch(NamedTuple):
    """Tensors of one forward pass: ``B`` strips, ``W`` positions, ``M`` of which predict ``N`` completion tokens.

    Attributes:
        input_ids: Shape ``[B, W]``, padded with token 0.
        position_ids: As if every sample lay alone behind its prompt, shape ``[B, W]``.
        owner: Whose token stands at a position, shape ``[B, W]``: 0 the prompt's, from 1 the samples', -1 nobody's.
            None where every strip has one sample: the model's own causal attention is right then, also
            for what is padded on the right.
        predicts: Positions whose logits predict completion tokens, shape ``[B, W]``, ``M`` of them true.
        temperature: Of these positions, shape ``[M]``.
        source: Which of them predicts each token, shape ``[N]``: all samples of a strip begin behind the same position.
        rewards: Of the samples, shape ``[S]``.
        targets: The predicted tokens, sample by sample, shape ``[N]``, like all that follow.
        behaviour: Log-probabilities when they were drawn.
        advantages: Dimensionless.
        weights: Above 0.
        sequences: Which of them belong to which sample.
    """

    input_ids: Tensor
    position_ids: Tensor
    owner: Tensor | None
    predicts: Tensor
    temperature: Tensor
    source: Tensor
    rewards: Tensor
    targets: Tensor
    behaviour: Tensor
    advantages: Tensor
    weights: Tensor
    sequences: Sequences

    def inputs(self) -> dict[str, Tensor]:
        """Return what a model's forward pass takes."""
        if self.owner is None:
            return {"input_ids": self.input_ids}
        return {"input_ids": self.input_ids, "position_ids": self.position_ids, "attention_mask": _seen(self.owner)}


def _seen(owner: Tensor) -> Tensor:
    """Return what each position attends to, shape ``[B, 1, W, W]``: its prompt and what stands before it of its sample.

    Padding sees the prompt, for a row of the mask must not be empty.
    """
    seen, seer = owner[:, None, None, :], owner[:, None, :, None]
    before = torch.ones(owner.shape[1], owner.shape[1], dtype=torch.bool, device=owner.device).tril()
    return before & ((seen == 0) | (seen == seer))


def collate(strips: Sequence[Strip], device: torch.device) -> MicroBatch:
    """Build the tensors of one micro-batch. Python touches each token once."""
    rows = [row for strip in strips for row in strip.rows]
    lengths = np.array([len(row.completion) for row in rows])
    layouts = [_layout(strip) for strip in strips]
    width = max(strip.width for strip in strips)

    def padded(arrays: Iterable[NDArray[Any]], dtype: Any, fill: int) -> Tensor:
        out = np.full((len(strips), width), fill, dtype=dtype)
        for row, array in zip(out, arrays, strict=True):
            row[: len(array)] = array
        return torch.from_numpy(out).to(device)

    def flat(values: Iterable[Any], dtype: Any) -> Tensor:
        array = np.fromiter(values, dtype=dtype, count=int(lengths.sum()))
        return torch.from_numpy(array).to(device)

    def spread(values: Sequence[float]) -> Tensor:
        return torch.from_numpy(np.repeat(np.array(values, dtype=np.float32), lengths)).to(device)

    predicting = np.array([int(layout.predicts.sum()) for layout in layouts])
    starts = np.cumsum(predicting) - predicting
    shared = any(len(strip.rows) > 1 for strip in strips)
    return MicroBatch(
        input_ids=padded((_tokens(strip) for strip in strips), np.int64, 0),
        position_ids=padded((layout.positions for layout in layouts), np.int64, 0),
        owner=padded((layout.owner for layout in layouts), np.int32, -1) if shared else None,
        predicts=padded((layout.predicts for layout in layouts), np.bool_, 0),
        temperature=torch.from_numpy(
            np.repeat(np.array([strip.rows[0].temperature for strip in strips], dtype=np.float32), predicting)
        ).to(device),
        source=torch.from_numpy(
            np.concatenate([layout.source + start for layout, start in zip(layouts, starts, strict=True)])
        ).to(device),
        rewards=torch.tensor([row.reward for row in rows], device=device),
        targets=flat(chain.from_iterable(row.completion for row in rows), np.int64),
        behaviour=flat(chain.from_iterable(row.behaviour for row in rows), np.float32),
        advantages=spread([row.advantage for row in rows]),
        weights=spread([row.weight for row in rows]),
        sequences=Sequences(
            owner=torch.from_numpy(np.repeat(np.arange(len(rows)), lengths)).to(device),
            lengths=torch.from_numpy(lengths.astype(np.float32)).to(device),
        ),
    )


class _Layout(NamedTuple):
    """Of one strip of ``w`` positions that predict ``n`` tokens: what ``MicroBatch`` says, without padding.

    Attributes:
        positions, owner, predicts: Shape ``[w]``.
        source: Which of the strip's predicting positions predicts each token, shape ``[n]``.
    """

    positions: NDArray[np.int64]
    owner: NDArray[np.int32]
    predicts: NDArray[np.bool_]
    source: NDArray[np.int64]


def _layout(strip: Strip) -> _Layout:
    prompt = len(strip.rows[0].prompt)
    lengths = np.array([len(row.completion) for row in strip.rows])
    read = lengths - 1
    sample = np.repeat(np.arange(len(read)), read)
    within = np.arange(len(sample)) - np.repeat(np.cumsum(read) - read, read)
    # the first token of each sample is predicted by the prompt's last position, each other one by its forerunner
    first = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    source = np.arange(int(lengths.sum())) - np.repeat(np.arange(len(lengths)), lengths)
    source[first] = 0
    return _Layout(
        positions=np.concatenate([np.arange(prompt), prompt + within]),
        owner=np.concatenate([np.zeros(prompt), sample + 1]).astype(np.int32),
        predicts=np.arange(prompt + len(sample)) >= prompt - 1,
        source=source,
    )


def _tokens(strip: Strip) -> NDArray[np.int64]:
    tokens = chain(strip.rows[0].prompt, *(row.completion[:-1] for row in strip.rows))
    return np.fromiter(tokens, dtype=np.int64, count=strip.width)
