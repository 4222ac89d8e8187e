"""Parameters and the optimizer that steps them."""

from typing import Any

import torch
from torch import Tensor

from backends.trainers.torch.options import Config


class Stepper:
    """AdamW over every parameter of a module that has a gradient.

    Args:
        module: Its parameters get gradients of zero at once.
        cfg: Settings of the optimizer; the learning rate comes with each step.

    Attributes:
        module: As given.
        parameters: Those that are trained, in the module's order.
        optimizer: Its state is to be saved and loaded with the module's.
    """

    def __init__(self, module: Any, cfg: Config) -> None:
        self.module = module
        self._max_norm = cfg.max_grad_norm
        self.parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self.parameters, betas=cfg.betas, eps=cfg.eps, weight_decay=cfg.weight_decay, fused=True
        )
        for parameter in self.parameters:
            # AdamW passes over a parameter without a gradient: a batch that trains nothing would then differ
            # from one whose gradients are zero, and a run that was loaded from one that was not
            parameter.grad = torch.zeros_like(parameter)

    def zero(self) -> None:
        """Forget all gradients."""
        self.optimizer.zero_grad(set_to_none=False)

    @property
    def gradients(self) -> list[Tensor]:
        """Of the parameters, in their order."""
        return [one.grad for one in self.parameters if one.grad is not None]

    def step(self, norm: Tensor, rate: float) -> None:
        """Scale the gradients down to the largest norm allowed, and step.

        Args:
            norm: Of the gradients of all ranks, finite.
            rate: Learning rate.
        """
        if self._max_norm > 0:
            torch.nn.utils.clip_grads_with_norm_(self.parameters, self._max_norm, norm)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
