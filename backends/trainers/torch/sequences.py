"""Which tokens belong to which sample, where the tokens of several samples lie one after the other."""

from typing import NamedTuple

import torch
from torch import Tensor


class Sequences(NamedTuple):
    """``B`` samples with ``N`` tokens in all.

    Attributes:
        owner: The sample of each token, from 0, shape ``[N]``.
        lengths: Tokens of each sample, at least 1, shape ``[B]``, floats.
    """

    owner: Tensor
    lengths: Tensor

    def sums(self, values: Tensor) -> Tensor:
        """Add up the values of each sample's tokens; shape ``[N]``, for each token its sample's sum."""
        return torch.zeros_like(self.lengths).index_add(0, self.owner, values)[self.owner]

    def means(self, values: Tensor) -> Tensor:
        """Average the values of each sample's tokens; shape ``[N]``, for each token its sample's mean."""
        return self.sums(values) / self.lengths[self.owner]
