"""One device: clipped policy gradient and AdamW on a Hugging Face causal language model.

The trainer runs in a thread of its own, never on the event loop. It draws no random numbers: the
model stays in evaluation mode, so that its probabilities are those of the engines.
"""

import importlib.util
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Annotated

import anyio.to_thread
from msgspec import Meta

from protocols.adapters import Host
from protocols.errors import Problem
from protocols.messages import Message
from protocols.sections import Site
from protocols.training import TrainerPort

NonNegative = Annotated[float, Meta(ge=0)]
Decay = Annotated[float, Meta(ge=0, lt=1)]


class Config(Message, frozen=True, kw_only=True):
    """The ``train`` section of a job.

    Attributes:
        lr: Learning rate of AdamW, the same at every step.
        betas: Decay of AdamW's two moments.
        eps: Added to the root of AdamW's second moment.
        weight_decay: Of all parameters alike.
        max_grad_norm: Gradients are scaled down to this global norm; 0: never.
        clip_low: A token's probability ratio counts down to ``1 - clip_low``.
        clip_high: And up to ``1 + clip_high``.
        micro_batch_tokens: Most tokens of one forward and backward pass, padding counted. A longer sample
            is a pass of its own.
        threads: Cores that a pass uses. It is the whole process's setting; None leaves it alone.
    """

    lr: Annotated[float, Meta(gt=0)] = 1e-6
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    eps: Annotated[float, Meta(gt=0)] = 1e-8
    weight_decay: NonNegative = 0.0
    max_grad_norm: NonNegative = 1.0
    clip_low: Annotated[float, Meta(ge=0, lt=1)] = 0.2
    clip_high: NonNegative = 0.2
    micro_batch_tokens: Annotated[int, Meta(ge=1)] = 4096
    threads: Annotated[int, Meta(ge=1)] | None = None


def check(cfg: Config, site: Site) -> Sequence[Problem]:  # noqa: ARG001 - the options check themselves
    """Return what is wrong: no model, or no torch to train it with."""
    problems: list[Problem] = []
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
