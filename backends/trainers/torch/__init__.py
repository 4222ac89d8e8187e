"""One device: policy gradients and AdamW on a Hugging Face causal language model.

The trainer runs in a thread of its own, never on the event loop. It draws no random numbers: the
model stays in evaluation mode, so that its probabilities are those of the engines.
"""

import importlib.util
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Literal

import anyio.to_thread
from msgspec import Meta

from protocols.adapters import Host
from protocols.errors import Problem
from protocols.messages import Message
from protocols.sections import Site
from protocols.training import TrainerPort

NonNegative = Annotated[float, Meta(ge=0)]
Decay = Annotated[float, Meta(ge=0, lt=1)]
Aggregation = Literal["token", "sequence", "constant"]


class Config(Message, frozen=True, kw_only=True):
    """The ``train`` section of a job.

    Attributes:
        lr: Learning rate of AdamW, the same at every step.
        betas: Decay of AdamW's two moments.
        eps: Added to the root of AdamW's second moment.
        weight_decay: Of all parameters alike.
        max_grad_norm: Gradients are scaled down to this global norm; 0: never.
        loss: ``clip`` (PPO, GRPO, DAPO), ``gspo``, ``cispo`` or ``reinforce``.
        clip_low: The probability ratio counts down to ``1 - clip_low``; not for ``reinforce``.
        clip_high: And up to ``1 + clip_high``.
        dual_clip: For ``clip`` and ``gspo``: where the advantage is negative, the ratio counts up to this at most.
        importance: For ``reinforce``: tokens are weighted with the ratio of the ``token``, of its whole ``sequence``,
            or not at all.
        importance_cap: Such a weight is at most this.
        aggregation: The loss is the mean over all tokens (``token``), over samples of the mean over their tokens
            (``sequence``), or over samples of the sum over their tokens divided by a ``constant``.
        aggregation_length: That constant, in tokens.
        entropy_bonus: The mean entropy of the tokens, in nats, times this is subtracted from the loss.
        micro_batch_tokens: Most tokens of one forward and backward pass, padding counted. A longer sample
            is a pass of its own.
        threads: Cores that a pass uses. It is the whole process's setting; None leaves it alone.
    """

    lr: Annotated[float, Meta(gt=0)] = 1e-6
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    eps: Annotated[float, Meta(gt=0)] = 1e-8
    weight_decay: NonNegative = 0.0
    max_grad_norm: NonNegative = 1.0
    loss: Literal["clip", "gspo", "cispo", "reinforce"] = "clip"
    clip_low: Annotated[float, Meta(ge=0, le=1)] = 0.2
    clip_high: NonNegative = 0.2
    dual_clip: Annotated[float, Meta(gt=1)] | None = None
    importance: Literal["none", "token", "sequence"] = "none"
    importance_cap: Annotated[float, Meta(gt=0)] = 2.0
    aggregation: Aggregation = "token"
    aggregation_length: Annotated[int, Meta(ge=1)] | None = None
    entropy_bonus: NonNegative = 0.0
    micro_batch_tokens: Annotated[int, Meta(ge=1)] = 4096
    threads: Annotated[int, Meta(ge=1)] | None = None


def check(cfg: Config, site: Site) -> Sequence[Problem]:
    """Return what is wrong: options that do not go together, no model, or no torch to train it with."""
    problems = list(_option_problems(cfg))
    if site.model is None:
        why, mend = "there is nothing to train", "add a [model] section"
        problems.append(Problem(field="model", value=None, why=why, mend=mend))
    problems += [
        Problem(
            field="train.kind",
            value="'torch'",
            why=f"it needs the module '{name}'",
            mend="pip install 'conductor-rl[torch]'",
        )
        for name in ("torch", "transformers")
        if importlib.util.find_spec(name) is None
    ]
    return problems


def _option_problems(cfg: Config) -> Iterator[Problem]:
    """Find options that another one leaves without effect, or without what it needs."""
    if cfg.dual_clip is not None and cfg.loss not in {"clip", "gspo"}:
        why, mend = f"the loss '{cfg.loss}' has no dual clip", "set loss to 'clip' or 'gspo', or leave dual_clip out"
        yield Problem(field="train.dual_clip", value=f"{cfg.dual_clip:g}", why=why, mend=mend)
    if cfg.importance != "none" and cfg.loss != "reinforce":
        why = f"the loss '{cfg.loss}' has the ratio to the policy that drew the tokens in it already"
        mend = "set loss to 'reinforce', or leave importance out"
        yield Problem(field="train.importance", value=f"'{cfg.importance}'", why=why, mend=mend)
    if cfg.aggregation == "constant" and cfg.aggregation_length is None:
        why, mend = "aggregation = 'constant' divides by it", "give a number of tokens, such as sampling.max_tokens"
        yield Problem(field="train.aggregation_length", value=None, why=why, mend=mend)
    if cfg.aggregation != "constant" and cfg.aggregation_length is not None:
        why = f"aggregation = '{cfg.aggregation}' does not divide by it"
        mend = "set aggregation to 'constant', or leave aggregation_length out"
        yield Problem(field="train.aggregation_length", value=str(cfg.aggregation_length), why=why, mend=mend)


@asynccontextmanager
async def open(cfg: Config, host: Host) -> AsyncGenerator[TrainerPort]:  # noqa: A001 - the name that adapters have
    """Load the model and warm up, in a thread; nothing computes any more when the block ends.

    Raises:
        UserError: The model cannot be loaded.
    """
    # importing torch takes a second or more, in which the event loop must go on
    module = await anyio.to_thread.run_sync(importlib.import_module, f"{__name__}.trainer")
    async with module.open_trainer(cfg, host) as trainer:
        yield trainer
