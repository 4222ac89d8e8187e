"""What the policy's loss is made of, token by token, as a job asks for it."""

from typing import NamedTuple

import torch
from torch import Tensor

from backends.trainers.torch import ratios
from backends.trainers.torch.losses import TokenLoss, cispo, clipped_surrogate, reinforce
from backends.trainers.torch.microbatch import MicroBatch
from backends.trainers.torch.options import RejectConfig
from backends.trainers.torch.recipes import Objective
from backends.trainers.torch.rejection import Correction, decoupled, reject_sequences, reject_tokens


class Terms(NamedTuple):
    """Of each token.

    Attributes:
        policy: The loss, without weights.
        importance: Its weight, for who drew the token; None where every token weighs the same.
        rejection: Whether it is left out; None where none is.
    """

    policy: TokenLoss
    importance: Correction | None
    rejection: Correction | None

    @property
    def loss(self) -> Tensor:
        """The weighted loss, shape ``[N]``."""
        loss = self.policy.loss
        for correction in (self.importance, self.rejection):
            if correction is not None:
                # not times 0: what is left out may be infinite
                loss = torch.where(correction.weights > 0, loss * correction.weights, 0.0)
        return loss


def policy_terms(
    objective: Objective, reject: RejectConfig | None, logprobs: Tensor, micro: MicroBatch, proximal: Tensor | None
) -> Terms:
    """Compute the loss of each completion token of a micro-batch.

    Args:
        objective: Which one.
        reject: Which tokens are left out.
        logprobs: Of the policy that is being trained, shape ``[N]``.
        micro: The tokens, who drew them, and how good they were.
        proximal: Log-probabilities of the policy that was trained when the batch came, shape ``[N]``; None where it
            has not changed since.
    """
    start = logprobs.detach() if proximal is None else proximal
    anchor = micro.behaviour if objective.proximal == "behaviour" else start
    # how far off policy the tokens are does not depend on how far this batch has moved the policy
    off_policy = (start if objective.proximal == "start" else logprobs.detach(), micro.behaviour)
    return Terms(
        policy=_loss(objective, logprobs, anchor, micro),
        importance=_importance(objective, *off_policy, micro),
        rejection=None if reject is None else _rejection(reject, *off_policy, micro),
    )


def _loss(objective: Objective, logprobs: Tensor, anchor: Tensor, micro: MicroBatch) -> TokenLoss:
    advantages = micro.advantages
    of_tokens = ratios.of_tokens(logprobs, anchor)
    low, high = objective.clip_low, objective.clip_high
    match objective.loss:
        case "clip":
            return clipped_surrogate(of_tokens, advantages, low=low, high=high, dual=objective.dual_clip)
        case "gspo":
            of_samples = ratios.of_sequence_means(logprobs, anchor, micro.sequences)
            return clipped_surrogate(of_samples, advantages, low=low, high=high, dual=objective.dual_clip)
        case "cispo":
            return cispo(logprobs, of_tokens, advantages, low=low, high=high)
        case "reinforce":
            return reinforce(logprobs, of_tokens, advantages)


def _importance(objective: Objective, start: Tensor, behaviour: Tensor, micro: MicroBatch) -> Correction | None:
    match objective.importance:
        case "none":
            return None
        case "token":
            return decoupled(ratios.of_tokens(start, behaviour), cap=objective.importance_cap)
        case "sequence":
            return decoupled(ratios.of_sequences(start, behaviour, micro.sequences), cap=objective.importance_cap)


def _rejection(reject: RejectConfig, start: Tensor, behaviour: Tensor, micro: MicroBatch) -> Correction:
    log_ratio = ratios.of_tokens(start, behaviour)
    if reject.by == "token":
        return reject_tokens(log_ratio, low=reject.low, high=reject.high)
    return reject_sequences(log_ratio, micro.sequences, low=reject.low, high=reject.high, measure=reject.by)
