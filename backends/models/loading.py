"""The job's model, as every part of the run that needs it gets it."""

import threading
from typing import Any

import msgspec
import torch
from transformers import PreTrainedModel

from backends.models.tokenizers import Tokenizer
from protocols.adapters import UnknownAdapter, resolve
from protocols.errors import ConfigError, Problem, UserError
from protocols.sections import Site

_one_at_a_time = threading.Lock()  # initializers draw from torch's one global generator


def load_module(site: Site) -> PreTrainedModel:
    """Build the job's model: a Hugging Face causal language model in float32 and eval mode.

    With ``lora``, all but its adapters is frozen. Random weights depend on ``site.seed`` alone; the global random
    state stays as it was. Blocks for long; any thread.

    Raises:
        UserError: The job names no model, or one that cannot be loaded.
    """
    adapter, cfg = _model(site)
    with _one_at_a_time:
        module: PreTrainedModel = adapter.load_module(cfg, site)
    return module.float().eval()


def load_tokenizer(site: Site) -> Tokenizer:
    """Load the tokenizer of the job's model. Blocks for long; any thread.

    Raises:
        UserError: The job names no model, or its tokenizer cannot be loaded.
    """
    adapter, cfg = _model(site)
    return adapter.load_tokenizer(cfg, site)


def check_model(site: Site) -> None:
    """Look whether the model of a job can be had, without loading it: a name that nobody knows, say, in seconds.

    Raises:
        ConfigError: It cannot; all of its problems at once.
    """
    adapter, cfg = _model(site)
    if problems := adapter.check(cfg, site):
        raise ConfigError(problems)


def changing_tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return what training can change: parameters that are not frozen, tied ones once, and persistent buffers.

    The tensors are the module's own, not copies. Modules of the same ``[model]`` have the same names.
    """
    persistent = module.state_dict().keys()
    parameters = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    return {**parameters, **{name: buffer for name, buffer in module.named_buffers() if name in persistent}}


def named_weights(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return what a weights payload holds: ``changing_tensors`` without gradients, sharing their storage."""
    return {name: tensor.detach() for name, tensor in changing_tensors(module).items()}


def _model(site: Site) -> tuple[Any, Any]:
    if site.model is None:
        why, mend = "this part of the job needs a model", "add a section [model]"
        raise ConfigError([Problem(field="model", value=None, why=why, mend=mend)])
    try:
        adapter = resolve("model", site.model.kind, site.job_dir)
        return adapter, msgspec.convert(site.model.options, adapter.Config)
    except UnknownAdapter as exc:
        raise ConfigError([exc.problem]) from exc
    except msgspec.ValidationError as exc:
        raise UserError(f"model: {exc}") from exc
