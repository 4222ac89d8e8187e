"""Losses as one would write them without thinking of speed: one unpadded sample at a time."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from backends.trainers.torch import Config
from backends.trainers.torch.recipes import Objective, objective_of
from tests.support.batches import Drawn, Group

OBJECTIVES: dict[str, dict[str, Any]] = {
    f"{name}-{aggregation}": {**loss, "aggregation": aggregation, **length}
    for name, loss in {
        "clip": {"loss": "clip", "clip_high": 0.28},
        "dual-clip": {"loss": "clip", "dual_clip": 3.0},
        "gspo": {"loss": "gspo", "clip_low": 0.3, "clip_high": 0.4},
        "cispo": {"loss": "cispo", "clip_low": 1.0, "clip_high": 2.0},
        "reinforce": {"loss": "reinforce"},
        "token-tis": {"loss": "reinforce", "importance": "token"},
        "sequence-tis": {"loss": "reinforce", "importance": "sequence", "importance_cap": 5.0},
        "entropy": {"loss": "clip", "entropy_bonus": 0.1},
    }.items()
    for aggregation, length in {"token": {}, "sequence": {}, "constant": {"aggregation_length": 6}}.items()
}
"""Options of every loss with every aggregation."""


def plain(module: Any, groups: Sequence[Group], cfg: Config) -> tuple[float, Tensor]:
    """Return the loss of a batch and the gradients of all parameters."""
    module.zero_grad()
    objective = objective_of(cfg, None)
    samples = [(group, drawn) for group in groups for drawn in group.samples if drawn.weight and drawn.tokens]
    tokens = sum(len(drawn.tokens) for _, drawn in samples)
    total = torch.zeros(())
    for group, drawn in samples:
        logprobs, entropies = _scores(module, group, drawn)
        losses = _losses(objective, logprobs, torch.full_like(logprobs, drawn.logprob), drawn.advantage)
        match objective.aggregation:
            case "token":
                total = total + losses.sum() / tokens
            case "sequence":
                total = total + losses.mean() / len(samples)
            case "constant":
                total = total + losses.sum() / (objective.aggregation_length or 0) / len(samples)
        total = total - cfg.entropy_bonus * entropies.sum() / tokens
    if samples:
        total.backward()
    gradients = [
        torch.zeros_like(parameter).flatten() if parameter.grad is None else parameter.grad.flatten()
        for parameter in module.parameters()
    ]
    return total.item(), torch.cat(gradients)


def _scores(module: Any, group: Group, drawn: Drawn) -> tuple[Tensor, Tensor]:
    ids = torch.tensor([*group.prompt, *drawn.tokens])
    start = len(group.prompt)
    logits = module(input_ids=ids[None]).logits[0, start - 1 : -1] / (group.temperature or 1.0)
    entropies = torch.distributions.Categorical(logits=logits).entropy()
    return torch.stack([logits[at].log_softmax(-1)[ids[start + at]] for at in range(len(drawn.tokens))]), entropies


def _losses(objective: Objective, logprobs: Tensor, behaviour: Tensor, advantage: float) -> Tensor:
    ratio = (logprobs - behaviour).exp()
    if objective.loss == "gspo":
        ratio = ratio.log().mean().exp().expand_as(ratio)
    bounded = ratio.clamp(1 - objective.clip_low, 1 + objective.clip_high)
    if objective.loss == "cispo":
        return -bounded.detach() * advantage * logprobs
    if objective.loss == "reinforce":
        weights = {
            "none": torch.ones_like(ratio),
            "token": ratio.clamp(max=objective.importance_cap),
            "sequence": ratio.prod().clamp(max=objective.importance_cap),
        }[objective.importance]
        return -weights.detach() * advantage * logprobs
    gain = torch.minimum(ratio * advantage, bounded * advantage)
    if objective.dual_clip is not None and advantage < 0:
        gain = gain.clamp(min=objective.dual_clip * advantage)
    return -gain
