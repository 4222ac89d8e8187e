"""The loss that a job asks for."""

from backends.trainers.torch import Config, ratios
from backends.trainers.torch.losses import TokenLoss, cispo, clipped_surrogate, reinforce
from backends.trainers.torch.microbatch import MicroBatch
from backends.trainers.torch.scores import Scores


def token_loss(cfg: Config, scores: Scores, micro: MicroBatch) -> TokenLoss:
    """Compute the loss of each completion token of a micro-batch as ``cfg.loss`` says."""
    logprobs, behaviour, advantages = scores.logprobs, micro.behaviour, micro.advantages
    match cfg.loss:
        case "clip":
            log_ratio = ratios.of_tokens(logprobs, behaviour)
            return clipped_surrogate(log_ratio, advantages, low=cfg.clip_low, high=cfg.clip_high, dual=cfg.dual_clip)
        case "gspo":
            log_ratio = ratios.of_sequence_means(logprobs, behaviour, micro.sequences)
            return clipped_surrogate(log_ratio, advantages, low=cfg.clip_low, high=cfg.clip_high, dual=cfg.dual_clip)
        case "cispo":
            log_ratio = ratios.of_tokens(logprobs, behaviour)
            return cispo(logprobs, log_ratio, advantages, low=cfg.clip_low, high=cfg.clip_high)
        case "reinforce":
            by_sequence = cfg.importance == "sequence"
            log_ratio = (
                ratios.of_sequences(logprobs, behaviour, micro.sequences)
                if by_sequence
                else ratios.of_tokens(logprobs, behaviour)
            )
            cap = None if cfg.importance == "none" else cfg.importance_cap
            return reinforce(logprobs, log_ratio, advantages, cap=cap)
