"""Every rank holds all that is trained, so a process that was lost is replaced without going back to a checkpoint."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from backends.trainers.torch.layout import Layout
from backends.trainers.torch.models import Models
from backends.trainers.torch.ranks import Ranks
from backends.trainers.torch.stepper import Stepper
from backends.trainers.torch.weight_files import copies

_Moments = dict[tuple[str, int, str], tuple[tuple[int, ...], torch.dtype]]
"""Stepper, number of the parameter, name of the moment -> shape and type of a tensor of the optimizer."""


class Replicated:
    """Gradients are added up after the passes of a minibatch; everything else is as with one process.

    Args:
        ranks: Who else trains the same policy.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.parts = False

    def place(self, models: Models, rank: int, world: int) -> bool:
        """Leave them as they are."""
        return False

    @torch.no_grad()
    def take_over(self, steppers: Mapping[str, Stepper], source: int) -> None:
        """Copy parameters, buffers and optimizer states."""
        moments = self.ranks.share(_moments(steppers), source)
        if self.ranks.rank != source:
            _make_room(steppers, moments)
        for stepper in steppers.values():
            for tensor in (*stepper.module.parameters(), *stepper.module.buffers()):
                self.ranks.share_tensor(tensor.data, source)
        for name, number, moment in moments:
            stepper = steppers[name]
            self.ranks.share_tensor(stepper.optimizer.state[stepper.parameters[number]][moment], source)

    def idle(self, passes: Sequence[int]) -> list[int]:
        """Each rank computes by itself."""
        return [0] * len(passes)

    def add_up_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Add them up, all at once."""
        self.ranks.add_up_gradients(parameters)

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """Compute it from the gradients here, which are all of them."""
        return torch.nn.utils.get_total_norm(gradients)

    def lent(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the model's own."""
        return dict(tensors)

    def copies(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copy them."""
        return copies(tensors)

    def fill(self, target: Tensor, value: Tensor) -> None:
        """Copy all of it."""
        target.copy_(value)

    def moment(self, parameter: Tensor, value: Tensor) -> Tensor:
        """Copy all of it, to where the parameter is."""
        return value.to(parameter.device, copy=True)

    def forget_passes(self) -> None:
        """Nothing is left of them."""


_: type[Layout] = Replicated


def _moments(steppers: Mapping[str, Stepper]) -> _Moments:
    return {
        (name, number, moment): (tuple(tensor.shape), tensor.dtype)
        for name, stepper in steppers.items()
        for number, parameter in enumerate(stepper.parameters)
        for moment, tensor in stepper.optimizer.state.get(parameter, {}).items()
    }


def _make_room(steppers: Mapping[str, Stepper], moments: _Moments) -> None:
    for stepper in steppers.values():
        stepper.optimizer.state.clear()
    for (name, number, moment), (shape, dtype) in moments.items():
        stepper = steppers[name]
        parameter = stepper.parameters[number]
        # a count of steps (no shape) stays on the CPU unless the optimizer is fused, as this one is
        stepper.optimizer.state[parameter][moment] = torch.zeros(shape, dtype=dtype, device=parameter.device)
