"""One rank's state becomes every rank's: a process that was lost is replaced without going back to a checkpoint."""

import torch

from backends.trainers.torch.learner import Learner
from backends.trainers.torch.ranks import Ranks

_Moments = dict[tuple[str, int, str], tuple[tuple[int, ...], torch.dtype]]
"""Stepper, number of the parameter, name of the moment -> shape and type of a tensor of the optimizer."""


@torch.no_grad()
def hand_over(learner: Learner, ranks: Ranks, source: int) -> None:
    """Give all ranks the parameters, buffers, optimizer states and memory of ``source``. All call it at once."""
    progress, moments = ranks.share((learner.progress, _moments(learner)), source)
    if ranks.rank != source:
        _make_room(learner, moments)
    for stepper in learner.steppers.values():
        for tensor in (*stepper.module.parameters(), *stepper.module.buffers()):
            ranks.share_tensor(tensor.data, source)
    for stepper_name, number, moment in moments:
        stepper = learner.steppers[stepper_name]
        ranks.share_tensor(stepper.optimizer.state[stepper.parameters[number]][moment], source)
    learner.go_on(progress)


def _moments(learner: Learner) -> _Moments:
    return {
        (name, number, moment): (tuple(tensor.shape), tensor.dtype)
        for name, stepper in learner.steppers.items()
        for number, parameter in enumerate(stepper.parameters)
        for moment, tensor in stepper.optimizer.state.get(parameter, {}).items()
    }


def _make_room(learner: Learner, moments: _Moments) -> None:
    for stepper in learner.steppers.values():
        stepper.optimizer.state.clear()
    for (name, number, moment), (shape, dtype) in moments.items():
        stepper = learner.steppers[name]
        parameter = stepper.parameters[number]
        # a count of steps (no shape) stays on the CPU unless the optimizer is fused, as this one is
        stepper.optimizer.state[parameter][moment] = torch.zeros(shape, dtype=dtype, device=parameter.device)
