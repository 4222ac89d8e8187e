"""Keys and values of the running rows, each token in the slot of its position."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.cache_utils import Cache

Prompts = Sequence[tuple[Tensor, Tensor]]
"""Keys and values of computed prompts, per layer, each ``[prompts, heads, length, dim]``."""


class RowCache(Cache):
    """The cache that a decode step hands to the model.

    Per layer two tensors of shape ``[rows, slots, heads, dim]``: what one token adds lies together, so that
    a step writes whole runs of memory. Rows are not padded on the left; slots behind a row's position
    hold garbage until they are written, and the step's mask hides them.
    """

    def __init__(self) -> None:
        super().__init__(layers=[])
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._at: tuple[Tensor, Tensor] = (torch.empty(0, dtype=torch.long), torch.empty(0, dtype=torch.long))
        self._slots = 0

    def grow(self, rows: int, slots: int) -> None:
        """Make room; what is there stays."""
        for tensors in (self._keys, self._values):
            for layer, old in enumerate(tensors):
                new = old.new_zeros((rows, slots, *old.shape[2:]))
                new[: old.shape[0], : old.shape[1]] = old
                tensors[layer] = new

    def place(self, first: int, source: NDArray[np.int64], prompts: Prompts, room: tuple[int, int]) -> None:
        """Copy prompts to rows ``first`` onwards.

        Args:
            first: The first row to fill.
            source: Prompt of each row, shape ``[new rows]``.
            prompts: Computed prompts, no longer than the slots.
            room: Rows and slots to make room for, where nothing was placed before.
        """
        index = torch.from_numpy(source)
        if not self._keys:
            self._keys = [_room(keys, room) for keys, _ in prompts]
            self._values = [_room(values, room) for _, values in prompts]
        rows = slice(first, first + len(source))
        for layer, (keys, values) in enumerate(prompts):
            self._keys[layer][rows, : keys.shape[2]] = keys.transpose(1, 2)[index]
            self._values[layer][rows, : values.shape[2]] = values.transpose(1, 2)[index]

    @torch.inference_mode()  # also between two steps, where the mode is off: the tensors were made in it
    def move(self, sources: NDArray[np.int64], targets: NDArray[np.int64]) -> None:
        """Copy rows over others."""
        here, there = torch.from_numpy(sources), torch.from_numpy(targets)
        for tensors in (self._keys, self._values):
            for tensor in tensors:
                tensor[there] = tensor[here]

    def aim(self, rows: Tensor, positions: Tensor, slots: int) -> None:
        """Say where the next forward pass writes, and how many slots it reads.

        Args:
            rows: ``0 .. R - 1``.
            positions: Of the token that each row adds, shape ``[R]``.
            slots: More than any of the positions.
        """
        self._at = (rows, positions)
        self._slots = slots

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the keys and values of one token a row; return those of all slots, ``[R, heads, slots, dim]``."""
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        keys.index_put_(self._at, key_states[:, :, 0])
        values.index_put_(self._at, value_states[:, :, 0])
        rows = len(self._at[0])
        return keys[:rows, : self._slots].transpose(1, 2), values[:rows, : self._slots].transpose(1, 2)


def _room(example: Tensor, room: Sequence[int]) -> Tensor:
    return example.new_zeros((*room, example.shape[1], example.shape[3]))
