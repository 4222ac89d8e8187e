"""The job's model, as every part of the run that needs it gets it."""

import threading

import torch
from transformers import PreTrainedModel

from backends.models.opening import adapter_of
from protocols.sections import Site

_one_at_a_time = threading.Lock()  # initializers draw from torch's one global generator


def load_module(site: Site) -> PreTrainedModel:
    """Build the job's model: a Hugging Face causal language model in float32 and eval mode.

    With ``lora``, all but its adapters is frozen. Random weights depend on ``site.seed`` alone; the global random
    state stays as it was. Blocks for long; any thread.

    Raises:
        UserError: The job names no model, or one that cannot be loaded.
    """
    adapter, cfg = adapter_of(site)
    with _one_at_a_time:
        module: PreTrainedModel = adapter.load_module(cfg, site)
    return module.float().eval()


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
