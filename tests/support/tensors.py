"""Tensors of every sort that travels: types, shapes, layouts, and a large one whose length the caller chooses."""

import torch
from torch import Tensor


def mixed_tensors(large: int) -> dict[str, Tensor]:
    """Return some by name, the last of them ``large`` numbers long."""
    return {
        "matrix": torch.arange(15, dtype=torch.float32).view(3, 5),
        "half": torch.arange(7, dtype=torch.bfloat16),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 4),
        "turned": torch.arange(6, dtype=torch.float64).view(2, 3).T,
        "large": torch.linspace(0, 1, large),
    }
