"""A learner in a folder: weights as transformers or peft write them, and beside them what training goes on from."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from backends.trainers.torch import randomness
from backends.trainers.torch.layout import Layout
from backends.trainers.torch.learner import Learner
from backends.trainers.torch.stepper import Stepper
from backends.trainers.torch.weight_files import Change, format_of, some
from protocols.errors import UserError
from protocols.messages import WeightVersion

_OPTIMIZER = "optimizer.safetensors"
_RANDOM = "random.safetensors"
_MEND = "restore it, or go on from another checkpoint"
_UNREADABLE = (OSError, ValueError, RuntimeError, KeyError, TypeError, SafetensorError)


class _Found(NamedTuple):
    """What a folder holds for one stepper."""

    stepper: Stepper
    version: WeightVersion
    weights: list[Change]
    moments: dict[Tensor, dict[str, Tensor]]


class _Part(NamedTuple):
    """What a folder will hold of one stepper: its weights, and its optimizer's state (``parameter/moment`` each)."""

    module: Any
    weights: dict[str, Tensor]
    moments: dict[str, Tensor]


class State(NamedTuple):
    """All that a folder will hold: what learns, by its role, and the random state of this process."""

    version: WeightVersion
    parts: dict[str, _Part]
    random: randomness.RandomState


def state_of(learner: Learner) -> State:
    """Return a learner's state; the tensors are its own, and change with its next step, where it can lend them."""
    return _state(learner, learner.layout.lent)


def copy_of(learner: Learner) -> State:
    """Return a learner's state in tensors apart from its own, as many bytes again."""
    return _state(learner, learner.layout.copies)


def write(state: State, folder: Path) -> None:
    """Write a state into an empty folder. Of a copy, the learner may step meanwhile."""
    for name, part in state.parts.items():
        place = _place(folder, name)
        place.mkdir(exist_ok=True)
        format_of(part.module).write(part.module, part.weights, place)
        save_file(part.moments, place / _OPTIMIZER, metadata={"version": str(state.version)})
    randomness.write(state.random, folder / _RANDOM)


def load(learner: Learner, folder: Path) -> None:
    """Read what ``write`` wrote. The learner and the random state are as they were where that fails.

    Raises:
        UserError: Files are missing or damaged, or are of another model.
    """
    places = [(stepper, _place(folder, name)) for name, stepper in learner.steppers.items()]
    needed = [place / name for stepper, place in places for name in (*format_of(stepper.module).files, _OPTIMIZER)]
    missing = [str(file.relative_to(folder)) for file in (*needed, folder / _RANDOM) if not file.is_file()]
    if missing:
        raise UserError(f"{folder} is no complete checkpoint: {', '.join(missing)} is missing; {_MEND}")
    try:
        found = [_read(stepper, place, learner.layout) for stepper, place in places]
        random_state = randomness.read(folder / _RANDOM)
    except _UNREADABLE as exc:
        raise UserError(f"{folder} cannot be read: {exc}; {_MEND}") from exc
    version, *others = {each.version for each in found}
    if others:
        raise UserError(f"{folder} is put together from checkpoints of different versions; {_MEND}")
    for each in found:
        _restore(each, learner.layout)
    randomness.restore(random_state)
    learner.restart(version)


def _place(folder: Path, role: str) -> Path:
    """Return where what learns lies: the policy in the folder itself, which is a model's for others."""
    return folder if role == "policy" else folder / role


def _state(learner: Learner, whole: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]) -> State:
    parts = {name: _part(stepper, whole) for name, stepper in learner.steppers.items()}
    return State(learner.version, parts, randomness.capture())


def _part(stepper: Stepper, whole: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]) -> _Part:
    moments = {
        f"{name}/{moment}": tensor
        for name, parameter in _trained(stepper.module).items()
        for moment, tensor in stepper.optimizer.state.get(parameter, {}).items()
    }
    return _Part(stepper.module, whole(format_of(stepper.module).weights(stepper.module)), whole(moments))


def _trained(module: torch.nn.Module) -> dict[str, Tensor]:
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def _read(stepper: Stepper, folder: Path, layout: Layout) -> _Found:
    module = stepper.module
    weights = format_of(module).read(module, folder)
    with safe_open(folder / _OPTIMIZER, framework="pt") as file:
        version = WeightVersion(int((file.metadata() or {}).get("version", "")))
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    return _Found(stepper, version, weights, _by_parameter(module, version, tensors, folder, layout))


def _by_parameter(
    module: torch.nn.Module, version: WeightVersion, moments: dict[str, Tensor], folder: Path, layout: Layout
) -> dict[Tensor, dict[str, Tensor]]:
    parameters = _trained(module)
    state: dict[Tensor, dict[str, Tensor]] = {}
    for key, tensor in moments.items():
        name, _, moment = key.rpartition("/")
        parameter = parameters.get(name)
        if parameter is None or tensor.shape not in {parameter.shape, torch.Size()}:
            why = f"the optimizer's {key} has the shape {list(tensor.shape)}"
            raise UserError(f"{folder} is of another model: {why}; load it with the job that wrote it")
        # copied: what is read is the file, mapped into memory, and changes when the file is written over
        state.setdefault(parameter, {})[moment] = layout.moment(parameter, tensor)
    lacking = [name for name, parameter in parameters.items() if version and parameter not in state]
    if lacking:
        raise UserError(f"{folder} is incomplete: the optimizer's state of {some(lacking)} is missing; {_MEND}")
    return state


@torch.no_grad()
def _restore(found: _Found, layout: Layout) -> None:
    for target, value in found.weights:
        layout.fill(target, value)
    state = found.stepper.optimizer.state
    state.clear()
    state.update(found.moments)
