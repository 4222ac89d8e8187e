"""One forward and backward pass: what it adds to the gradients, and what there is to say about it."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from backends.trainers.torch import mismatch, ratios
from backends.trainers.torch.aggregation import Totals, token_shares
from backends.trainers.torch.divergence import k3, penalty
from backends.trainers.torch.models import Models
from backends.trainers.torch.options import Config
from backends.trainers.torch.preparation import Part
from backends.trainers.torch.recipes import Objective
from backends.trainers.torch.scores import Scores
from backends.trainers.torch.terms import Terms, policy_terms
from backends.trainers.torch.values import ValueLoss, value_loss


class Added(NamedTuple):
    """What one pass adds to the metrics of its minibatch.

    Attributes:
        sums: By name, what the sum over passes makes the mean over tokens, or the loss.
        largest: The largest ratio.
        mismatch: The largest difference from the log-probabilities of who drew the tokens.
    """

    sums: dict[str, float]
    largest: float
    mismatch: float


def backward(part: Part, totals: Totals, models: Models, cfg: Config, objective: Objective) -> Added:
    """Add the gradients of one micro-batch.

    Args:
        part: Of a minibatch.
        totals: Of the whole minibatch: so gradients add up, whatever it was split into and wherever.
        models: The policy and, where it has one, its critic.
        cfg: Coefficients.
        objective: The loss.
    """
    micro = part.micro
    scores = models.score(micro, entropy_gradient=cfg.entropy_bonus > 0)
    terms = policy_terms(objective, cfg.reject, scores.logprobs, micro, part.proximal)
    shares = token_shares(micro.weights, micro.sequences, totals, objective.aggregation, objective.aggregation_length)
    loss = torch.dot(shares, terms.loss)
    if part.reference is not None and cfg.kl.place == "loss":
        kl = penalty(scores.logprobs, part.reference, micro.weights, cfg.kl.estimator)
        loss = loss + cfg.kl.coef * torch.dot(shares, kl)
    if cfg.entropy_bonus > 0:
        loss = loss - cfg.entropy_bonus * torch.dot(micro.weights, scores.entropy) / totals.tokens
    loss.backward()
    value = _value_backward(part, models, cfg, shares)
    with torch.no_grad():
        of_tokens = _of_tokens(part, scores, terms, value)
        means = torch.stack(list(of_tokens.values())) @ micro.weights / totals.tokens
    sums = dict(zip(("loss", *of_tokens), [loss.item(), *means.tolist()], strict=True))
    if value is not None:
        sums["value/loss"] = torch.dot(shares, value.loss.detach()).item()
    apart = mismatch.largest(scores.logprobs.detach(), micro.behaviour, micro.weights)
    return Added(sums, terms.policy.ratio.max().item(), apart)


def _value_backward(part: Part, models: Models, cfg: Config, shares: Tensor) -> ValueLoss | None:
    if models.critic is None:
        return None
    assert part.values is not None
    assert part.returns is not None
    losses = value_loss(models.values(part.micro), part.values, part.returns, cfg.critic.clip)
    torch.dot(shares, losses.loss).backward()
    return losses


def _of_tokens(part: Part, scores: Scores, terms: Terms, value: ValueLoss | None) -> Mapping[str, Tensor]:
    """Return what is worth a mean over tokens, each of shape ``[N]``."""
    logprobs = scores.logprobs
    found = {
        "ratio/mean": terms.policy.ratio,
        "clip_fraction": terms.policy.clipped.float(),
        "entropy": scores.entropy,
        "kl/behaviour": k3(ratios.of_tokens(logprobs, part.micro.behaviour)),
        **mismatch.of_tokens(logprobs, part.micro.behaviour),
    }
    if part.reference is not None:
        found["kl/reference"] = k3(ratios.of_tokens(part.reference, logprobs))
    if terms.importance is not None:
        found["importance/mean"] = terms.importance.weights
        found["importance/truncated"] = terms.importance.limited.float()
    if terms.rejection is not None:
        found["rejected"] = terms.rejection.limited.float()
    if part.returns is not None:
        found["return/mean"] = part.returns
    if value is not None and part.values is not None:
        found["value/mean"] = part.values
        found["value/clip_fraction"] = value.clipped.float()
    return found
