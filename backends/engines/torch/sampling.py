"""From logits to tokens: temperature, top-k, top-p, and one uniform number a token."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Laws:
    """How the tokens of ``R`` rows are drawn. Each row's draw is a function of that row alone.

    Args:
        temperature, top_p: Shape ``[R]``, float32.
        top_k: Shape ``[R]``, int64.
    """

    def __init__(self, temperature: NDArray[np.float32], top_p: NDArray[np.float32], top_k: NDArray[np.int64]) -> None:
        greedy = temperature == 0
        divisor = np.where(greedy, np.float32(1), temperature)
        cut = np.flatnonzero((top_k > 0) | (top_p < 1))
        self._divisor = torch.from_numpy(divisor[:, None]) if np.any(divisor != 1) else None
        self._greedy = torch.from_numpy(greedy[:, None]) if np.any(greedy) else None
        self._cut = torch.from_numpy(cut) if cut.size else None
        self._top_p = torch.from_numpy(top_p[cut, None])
        self._top_k = torch.from_numpy(top_k[cut, None])

    def draw(self, logits: Tensor, uniforms: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Draw a token a row by inverting the distribution function.

        Args:
            logits: Shape ``[R, V]``, float32.
            uniforms: In ``[0, 1)``, shape ``[R]``.

        Returns:
            Token ids and their log-probabilities before top-k and top-p, each of shape ``[R]``.

        Raises:
            FloatingPointError: The logits of a row are not finite.
        """
        scaled = logits if self._divisor is None else logits / self._divisor
        logprobs = torch.log_softmax(scaled, dim=-1)
        chances = torch.softmax(scaled, dim=-1)  # not exp: it treats the last elements of a tensor differently
        if self._cut is not None:
            chances[self._cut] = keep_likeliest(chances[self._cut], self._top_k, self._top_p)
        reached = chances.cumsum(dim=-1)
        # u < 1 in steps of 2**-24, so u * total rounds below total and a token without a chance is never met
        goal = torch.from_numpy(uniforms[:, None]) * reached[:, -1:]
        tokens = torch.searchsorted(reached, goal, right=True).clamp_(max=logits.shape[-1] - 1)
        if self._greedy is not None:
            tokens = torch.where(self._greedy, logits.argmax(dim=-1, keepdim=True), tokens)
        drawn = logprobs.gather(-1, tokens)[:, 0].numpy()
        if not np.isfinite(drawn).all():
            raise FloatingPointError("the model's logits are not finite")
        return tokens[:, 0].numpy(), drawn


def keep_likeliest(chances: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Set the chances of all but the likeliest tokens to zero, first by number, then by what remains.

    Args:
        chances: Shape ``[R, V]``, rows add up to 1.
        top_k: Number kept, shape ``[R, 1]``; 0 keeps all. Of equally likely tokens the first ids are kept.
        top_p: Of those, the smallest set that holds this share of their chance, shape ``[R, 1]``.

    Returns:
        Shape ``[R, V]``, not scaled back to 1; at least one token a row is kept.
    """
    ordered, order = chances.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(chances.shape[-1])
    ordered = ordered.masked_fill((top_k > 0) & (rank >= top_k), 0.0)
    reached = ordered.cumsum(dim=-1)
    needed = (reached - ordered) < top_p * reached[:, -1:]
    keep_all = top_p >= 1  # rounding must not cost the last token its place
    return torch.zeros_like(chances).scatter(-1, order, ordered * (needed | keep_all))
