"""The weights of a module in a folder, in the format of those who use such modules."""

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import logging

from backends.models.loading import named_weights
from backends.models.lora import adapter_description, adapter_tensors, has_adapters
from protocols.errors import UserError

_ONE_FILE = 1 << 60  # bytes: weights are never split into shards
_MODEL = "model.safetensors"
_ADAPTER_DESCRIPTION = "adapter_config.json"
_ADAPTERS = "adapter_model.safetensors"
_NAMED = 3
_MEND = "load it with the job that wrote it"

Change = tuple[Tensor, Tensor]
"""A tensor of a module, and what it is to hold."""


class Format(NamedTuple):
    """How a kind of module is written.

    Attributes:
        files: What a folder must hold.
        weights: Return a module's weights as they are written, by name; the tensors are its own.
        write: Write such weights, or copies of them, into an empty folder. Of the module it reads no tensor.
        read: Return what to change in a module so that it is the folder's. Raises ``UserError`` where the folder is
            of another module, and whatever safetensors and disks raise.
    """

    files: tuple[str, ...]
    weights: Callable[[Any], dict[str, Tensor]]
    write: Callable[[Any, Mapping[str, Tensor], Path], None]
    read: Callable[[Any, Path], list[Change]]


def format_of(module: Any) -> Format:
    """Return peft's format for a model with adapters, transformers' for any other of its models, else a plain file."""
    if has_adapters(module):
        return Format((_ADAPTER_DESCRIPTION, _ADAPTERS), adapter_tensors, _write_adapters, _read_adapters)
    if isinstance(module, PreTrainedModel):
        return Format(("config.json", _MODEL), _state, _write_model, _read_model)
    return Format((_MODEL,), named_weights, _write_plain, _read_plain)


def copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies in the host's memory; names of one tensor, as tied weights have, stay names of one."""
    made: dict[tuple[Any, ...], Tensor] = {}
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        place = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if place not in made:
            made[place] = tensor.detach().to("cpu", copy=True)
        found[name] = made[place]
    return found


def some(names: Collection[Any]) -> str:
    """Name three of them in order, and count the rest; of a parameter whose size is another one, both sizes."""
    told = sorted(f"{one[0]} {list(one[1])} not {list(one[2])}" if isinstance(one, tuple) else one for one in names)
    more = len(told) - _NAMED
    return ", ".join(told[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _state(module: Any) -> dict[str, Tensor]:
    return module.state_dict()


def _write_model(module: Any, weights: Mapping[str, Tensor], folder: Path) -> None:
    logging.disable_progress_bar()
    module.save_pretrained(folder, state_dict=dict(weights), max_shard_size=_ONE_FILE)


def _read_model(module: Any, folder: Path) -> list[Change]:
    logging.disable_progress_bar()
    with torch.random.fork_rng(devices=[]):  # it draws numbers for what the folder lacks
        # by way of transformers, which knows how the names in the file and in the module differ
        loaded, report = type(module).from_pretrained(
            folder,
            config=module.config,
            dtype=module.dtype,
            local_files_only=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    strange = [f"{kind.removesuffix('_keys')}: {some(names)}" for kind, names in report.items() if names]
    if strange:
        raise UserError(f"{folder} is of another model: {', '.join(strange)}; {_MEND}")
    return _pair(named_weights(module), named_weights(loaded), folder)


def _write_adapters(module: Any, weights: Mapping[str, Tensor], folder: Path) -> None:
    adapter_description(module).save_pretrained(str(folder))
    _write(weights, folder / _ADAPTERS)


def _read_adapters(module: Any, folder: Path) -> list[Change]:
    wanted, found = adapter_description(module), json.loads((folder / _ADAPTER_DESCRIPTION).read_bytes())
    for name, value in (("r", wanted.r), ("lora_alpha", wanted.lora_alpha)):
        if found.get(name) != value:
            why = f"its adapters have {name} = {found.get(name)}, and the job's {value}"
            raise UserError(f"{folder} is of another job: {why}; {_MEND}")
    return _pair(adapter_tensors(module), load_file(folder / _ADAPTERS), folder)


def _write_plain(_module: Any, weights: Mapping[str, Tensor], folder: Path) -> None:
    _write(weights, folder / _MODEL)


def _read_plain(module: Any, folder: Path) -> list[Change]:
    return _pair(named_weights(module), load_file(folder / _MODEL), folder)


def _write(tensors: Mapping[str, Tensor], file: Path) -> None:
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file, metadata={"format": "pt"})


def _pair(targets: Mapping[str, Tensor], values: Mapping[str, Tensor], folder: Path) -> list[Change]:
    strange = sorted(targets.keys() ^ values.keys())
    strange = strange or [name for name, target in targets.items() if values[name].shape != target.shape]
    if strange:
        raise UserError(f"{folder} is of another model: {some(strange)}; {_MEND}")
    return [(target, values[name]) for name, target in targets.items()]
