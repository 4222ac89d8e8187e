"""Adapters as servers read them: peft's names and description, without peft."""

from collections.abc import Iterable
from typing import Any

import msgspec

from backends.models.lora import ADAPTER, LoraConfig
from protocols.sections import Site

FILE = "adapter_model.safetensors"
DESCRIPTION = "adapter_config.json"

_PREFIX = "base_model.model."
_MATRICES = ("lora_A", "lora_B")


def lora_of(site: Site) -> LoraConfig | None:
    """Return what adapters the job trains; None: the whole model.

    Raises:
        msgspec.ValidationError: They are described wrongly.
    """
    said = None if site.model is None else site.model.options.get("lora")
    return None if said is None else msgspec.convert(said, LoraConfig)


def file_name(name: str) -> str:
    """Return what a matrix is called in peft's files, from its name in the module."""
    for matrix in _MATRICES:
        name = name.replace(f".{matrix}.{ADAPTER}.", f".{matrix}.")
    return _PREFIX + name


def module_name(name: str) -> str:
    """Return what a matrix is called in the module; what is no matrix of an adapter keeps its name."""
    if not name.startswith(_PREFIX):
        return name
    for matrix in _MATRICES:
        name = name.replace(f".{matrix}.", f".{matrix}.{ADAPTER}.")
    return name.removeprefix(_PREFIX)


def description(lora: LoraConfig, names: Iterable[str]) -> dict[str, Any]:
    """Return the contents of ``adapter_config.json``.

    Args:
        lora: As the job has it.
        names: Of the matrices, as in the module.
    """
    layers = {name.partition(f".{matrix}.")[0] for name in names for matrix in _MATRICES if f".{matrix}." in name}
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted({layer.rpartition(".")[2] for layer in layers}),
    }
