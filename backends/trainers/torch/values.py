"""The critic: what a policy may expect to be rewarded with, token by token."""

from typing import Any, NamedTuple

import torch
from torch import Tensor


class ValueLoss(NamedTuple):
    """Loss of each token; only ``loss`` has a gradient.

    Attributes:
        loss: Shape ``[N]``, to be minimized, in squared units of the reward.
        clipped: Whether the bound took the token's gradient away, shape ``[N]``.
    """

    loss: Tensor
    clipped: Tensor


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, clip: float | None) -> ValueLoss:
    """Compute half of the squared error, the larger one of the value and of the value near its old one.

    Args:
        values: Of the critic that is being trained, shape ``[N]``.
        old_values: Of the critic before it was trained on this batch, shape ``[N]``.
        returns: What they should be, shape ``[N]``.
        clip: A value that moved further than this from its old one, towards its return, moves no more; in units
            of the reward. None: no bound.

    Source:
        PPO's reference implementation, as arXiv 2005.12729 describes it.
    """
    free = (values - returns).square()
    if clip is None:
        return ValueLoss(free / 2, torch.zeros_like(free, dtype=torch.bool))
    bounded = (values.clamp(old_values - clip, old_values + clip) - returns).square()
    return ValueLoss(torch.maximum(free, bounded) / 2, bounded.detach() > free.detach())


class Critic(torch.nn.Module):
    """A language model with one number for each position in place of the next token's logits.

    The head starts at 0, and with it every value: the first advantages are those without a critic.

    Args:
        module: A Hugging Face causal language model of the critic's own. Its body, all but the output layer,
            becomes the critic's, in float32 and in the mode that it comes in.
    """

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.body = module.base_model
        # a linear layer's own initializer draws from torch's one global generator
        self.head = torch.nn.Linear(module.config.hidden_size, 1, device="meta").to_empty(device=module.device)
        for parameter in self.head.parameters():
            torch.nn.init.zeros_(parameter)
        self.float()

    def forward(
        self, input_ids: Tensor, position_ids: Tensor | None, attention_mask: Tensor | None, index: Tensor
    ) -> Tensor:
        """Return what is expected at some positions.

        The value of a completion token is that of the position which predicts it, the one before.

        Args:
            input_ids: Shape ``[B, W]``.
            position_ids: Shape ``[B, W]``; None: from 0 in each row.
            attention_mask: True where the position of the third axis sees that of the fourth, shape ``[B, 1, W, W]``;
                None: it sees itself and those before it.
            index: Positions in the rows laid end to end, from 0 to ``B x W - 1``, shape ``[N]``.

        Returns:
            Shape ``[N]``, in units of the reward.
        """
        hidden = self.body(
            input_ids=input_ids, position_ids=position_ids, attention_mask=attention_mask, use_cache=False
        ).last_hidden_state
        values = self.head(hidden.flatten(0, 1)[index]).squeeze(-1)
        return values.clone()  # where the critic is sharded, torch warns of a view as its output
