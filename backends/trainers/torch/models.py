"""The models that a trainer computes with."""

from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from backends.models.loading import load_module
from backends.models.lora import has_adapters, without_adapters
from backends.trainers.torch.microbatch import MicroBatch
from backends.trainers.torch.options import Config
from backends.trainers.torch.recipes import objective_of
from backends.trainers.torch.scores import Scores, score_tokens
from backends.trainers.torch.values import Critic
from protocols.sections import Site


class Models(NamedTuple):
    """Hugging Face causal language models; they stay in the mode that they come in.

    Attributes:
        policy: Is trained.
        reference: What the policy was when the run began, never trained: a copy, or the policy itself where it is
            trained through adapters, which can be left out. None where nothing is compared with it.
        critic: Is trained beside it, or None.
    """

    policy: Any
    reference: Any | None = None
    critic: Critic | None = None

    def score(self, micro: MicroBatch, *, entropy_gradient: bool = False) -> Scores:
        """Return what the policy says of each token."""
        return _score(self.policy, micro, entropy_gradient=entropy_gradient)

    def values(self, micro: MicroBatch) -> Tensor:
        """Return what the critic expects before each token, shape ``[N]``."""
        assert self.critic is not None
        inputs = micro.inputs()
        places = micro.predicts.flatten().nonzero().squeeze(-1)[micro.source]
        return self.critic(inputs["input_ids"], inputs.get("position_ids"), inputs.get("attention_mask"), places)

    @torch.no_grad()
    def reference_logprobs(self, micro: MicroBatch) -> Tensor | None:
        """Return the reference's log-probability of each token, shape ``[N]``; None where there is none."""
        if self.reference is None:
            return None
        with without_adapters(self.policy) if self.reference is self.policy else nullcontext():
            return _score(self.reference, micro, entropy_gradient=False).logprobs


def _score(module: Any, micro: MicroBatch, *, entropy_gradient: bool) -> Scores:
    logits = module(**micro.inputs(), use_cache=False, logits_to_keep=micro.predicts).logits
    return score_tokens(logits, micro.temperature, micro.source, micro.targets, entropy_gradient=entropy_gradient)


def load_models(site: Site, cfg: Config) -> Models:
    """Load what a job trains and what it compares with. Blocks for long; any thread.

    Raises:
        UserError: The job names no model, or one that cannot be loaded.
    """
    policy = load_module(site)
    reference = None
    if cfg.kl.coef > 0:
        reference = policy if has_adapters(policy) else load_module(site).requires_grad_(requires_grad=False)
    needs_critic = objective_of(cfg, site.max_tokens).returns == "gae"
    return Models(policy, reference, Critic(load_module(site)) if needs_critic else None)
