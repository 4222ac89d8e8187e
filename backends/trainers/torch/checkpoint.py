"""A learner in a folder: the model as transformers writes it, and the optimizer beside it."""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers.utils import logging

from backends.trainers.torch.learner import Learner
from protocols.errors import UserError
from protocols.messages import WeightVersion

_OPTIMIZER = "optimizer.safetensors"
_FILES = ("config.json", "model.safetensors", _OPTIMIZER)
_ONE_FILE = 1 << 60  # bytes: weights are never split into shards


def save(learner: Learner, folder: Path) -> None:
    """Write model, optimizer state (``parameter/moment`` each) and version into an empty folder."""
    logging.disable_progress_bar()
    learner.module.save_pretrained(folder, max_shard_size=_ONE_FILE)
    moments = {
        f"{name}/{moment}": tensor
        for name, parameter in learner.module.named_parameters()
        for moment, tensor in learner.optimizer.state[parameter].items()
    }
    save_file(moments, folder / _OPTIMIZER, metadata={"version": str(learner.version)})


def load(learner: Learner, folder: Path) -> None:
    """Read what ``save`` wrote. The learner is as it was where that fails.

    Raises:
        UserError: Files are missing or damaged, or are of another model.
    """
    missing = [name for name in _FILES if not (folder / name).is_file()]
    if missing:
        raise UserError(f"{folder} is no complete checkpoint: {', '.join(missing)} is missing")
    try:
        weights = _read_weights(learner.module, folder)
        version, moments = _read_optimizer(folder)
    except (OSError, ValueError, RuntimeError, SafetensorError) as exc:
        raise UserError(f"{folder} cannot be read: {exc}") from exc
    state = _by_parameter(learner, version, moments, folder)
    learner.module.load_state_dict(weights)
    learner.optimizer.state.clear()
    for parameter, values in state.items():
        learner.optimizer.state[parameter] = values
    learner.restart(version)


def _read_weights(module: Any, folder: Path) -> dict[str, Tensor]:
    logging.disable_progress_bar()
    # by way of transformers, which knows how the names in the file and in the module differ
    loaded, report = type(module).from_pretrained(
        folder,
        config=module.config,
        dtype=module.dtype,
        local_files_only=True,
        ignore_mismatched_sizes=True,
        output_loading_info=True,
    )
    strange = [f"{kind.removesuffix('_keys')}: {names}" for kind, names in report.items() if names]
    if strange:
        raise UserError(f"{folder} is of another model; {'; '.join(strange)}")
    return loaded.state_dict()


def _read_optimizer(folder: Path) -> tuple[WeightVersion, dict[str, Tensor]]:
    with safe_open(folder / _OPTIMIZER, framework="pt") as file:
        version = int((file.metadata() or {}).get("version", ""))
        return WeightVersion(version), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping


def _by_parameter(
    learner: Learner, version: WeightVersion, moments: dict[str, Tensor], folder: Path
) -> dict[Tensor, dict[str, Tensor]]:
    parameters = {name: one for name, one in learner.module.named_parameters() if one.requires_grad}
    state: dict[Tensor, dict[str, Tensor]] = {}
    for key, tensor in moments.items():
        name, _, moment = key.rpartition("/")
        parameter = parameters.get(name)
        if parameter is None or tensor.shape not in {parameter.shape, torch.Size()}:
            raise UserError(f"{folder} is of another model; the optimizer's {key} has the shape {list(tensor.shape)}")
        # copied: what is read is the file, mapped into memory, and changes when the file is written over
        state.setdefault(parameter, {})[moment] = tensor.to(parameter.device, copy=True)
    lacking = [name for name, parameter in parameters.items() if version and parameter not in state]
    if lacking:
        raise UserError(f"{folder} is incomplete; the optimizer's state of {', '.join(lacking)} is missing")
    return state
