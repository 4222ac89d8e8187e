"""LoRA: pairs of low-rank matrices beside frozen linear layers.

A model of the job has them from the start, so engine and trainer build the same ones; they alone are trained,
published and saved. peft computes them. It is asked for by way of the functions that it offers to other libraries: the
module keeps its class, its names and its forward pass.

Source:
    Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", arXiv 2106.09685.
"""

import importlib.util
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from msgspec import Meta

from protocols.errors import ConfigError, InvariantError, Problem, UserError
from protocols.messages import Message

ADAPTER = "default"
"""What peft calls the pairs of one model, which may have several sets of them."""


class LoraConfig(Message, frozen=True, kw_only=True):
    """Which layers get matrices, and of what size.

    There is no dropout: the trainer's probabilities must be the engines'.

    Attributes:
        rank: Of each pair.
        alpha: A pair's product counts ``alpha / rank`` times.
        targets: Names of linear layers, or the ends of their dotted names; None: all layers but the output head.
    """

    rank: Annotated[int, Meta(ge=1)] = 8
    alpha: Annotated[int, Meta(ge=1)] = 16
    targets: Annotated[tuple[str, ...], Meta(min_length=1)] | None = None


def find_missing(cfg: LoraConfig | None) -> list[Problem]:
    """Return a problem where peft is needed and not installed; it is looked for, not imported."""
    if cfg is None or importlib.util.find_spec("peft") is not None:
        return []
    why, mend = "it needs the module 'peft'", "pip install 'conductor-rl[lora]'"
    return [Problem(field="model.lora", value=None, why=why, mend=mend)]


def find_unmatched(cfg: LoraConfig | None, module: Any) -> list[Problem]:
    """Return a problem for each target that names no layer of ``module``, which may be on the meta device."""
    if cfg is None or cfg.targets is None:
        return []
    layers = _linear_layers(module)
    known = ", ".join(sorted({name.rpartition(".")[2] for name in layers}))
    why, mend = "no linear layer, the output head aside, has this name", f"the model has {known}"
    return [
        Problem(field="model.lora.targets", value=repr(target), why=why, mend=mend)
        for target in cfg.targets
        if not any(f".{name}".endswith(f".{target}") for name in layers)
    ]


def add_adapters(module: Any, cfg: LoraConfig, seed: int) -> None:
    """Give ``module`` its matrices and freeze everything else; it computes what it did before, until they are trained.

    What is drawn depends on ``seed`` alone, and the global random state stays as it was. Not to be run in two threads
    at once: initializers draw from the one global generator.

    Raises:
        ConfigError: peft is not installed, or targets name no layer.
        UserError: peft cannot adapt the layers.
    """
    problems = [*find_missing(cfg), *find_unmatched(cfg, module)]
    if problems:
        raise ConfigError(problems)
    import peft  # noqa: PLC0415 - heavy  # pyright: ignore[reportMissingImports] - an extra
    import torch  # noqa: PLC0415 - heavy
    from peft.functional import inject_adapter_in_model  # noqa: PLC0415  # pyright: ignore[reportMissingImports]

    described = peft.LoraConfig(
        base_model_name_or_path=module.name_or_path or None,
        task_type=peft.TaskType.CAUSAL_LM,
        r=cfg.rank,
        lora_alpha=cfg.alpha,
        target_modules="all-linear" if cfg.targets is None else list(cfg.targets),
        fan_in_fan_out=_stores_transposed(module),
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(random.Random(f"{seed}/lora").getrandbits(63))
        try:
            inject_adapter_in_model(described, module, ADAPTER)
        except ValueError as exc:
            raise UserError(f"model.lora: peft cannot adapt this model: {exc}") from exc


def has_adapters(module: Any) -> bool:
    """Return whether ``add_adapters`` was here."""
    return ADAPTER in getattr(module, "peft_config", {})


def adapter_tensors(module: Any) -> dict[str, Any]:
    """Return the matrices under the names that they have in peft's files; the tensors are the module's own."""
    from peft.functional import get_peft_model_state_dict  # noqa: PLC0415  # pyright: ignore[reportMissingImports]

    # whether embeddings were resized, which peft would ask the hub for, is known: they are frozen
    held = get_peft_model_state_dict(module, adapter_name=ADAPTER, save_embedding_layers=False)
    return {f"base_model.model.{name}": tensor for name, tensor in held.items()}


def adapter_description(module: Any) -> Any:
    """Return peft's own description of the adapters, a ``peft.LoraConfig``."""
    return module.peft_config[ADAPTER]


@contextmanager
def without_adapters(module: Any) -> Iterator[None]:
    """Let ``module`` compute as the model it was made from; the reference of a KL penalty needs no copy of it.

    Within the block the matrices count as frozen, so it is no place for ``named_weights``. Gradients stay, and so does
    the graph of a pass that was made before.

    Raises:
        InvariantError: It has none, and would be its own reference.
    """
    if not has_adapters(module):
        raise InvariantError("the model has no adapters that it could do without")
    from peft.tuners.tuners_utils import BaseTunerLayer  # noqa: PLC0415  # pyright: ignore[reportMissingImports]

    adapted = [layer for layer in module.modules() if isinstance(layer, BaseTunerLayer)]
    for layer in adapted:
        layer.enable_adapters(enabled=False)
    try:
        yield
    finally:
        for layer in adapted:
            layer.enable_adapters(enabled=True)


def _linear_layers(module: Any) -> dict[str, Any]:
    from torch.nn import Linear  # noqa: PLC0415 - heavy
    from transformers.pytorch_utils import Conv1D  # noqa: PLC0415 - heavy

    head = module.get_output_embeddings()
    layers = ((name, layer) for name, layer in module.named_modules() if layer is not head)
    return {name: layer for name, layer in layers if isinstance(layer, Linear | Conv1D)}


def _stores_transposed(module: Any) -> bool:
    """Return whether the linear layers are GPT-2's, ``[in, out]``; peft asks, and warns where it was told wrongly."""
    from transformers.pytorch_utils import Conv1D  # noqa: PLC0415 - heavy

    return any(isinstance(layer, Conv1D) for layer in _linear_layers(module).values())
