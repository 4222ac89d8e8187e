"""One device or several ranks: policy gradients and AdamW on a Hugging Face causal language model.

The trainer runs in a thread of its own, never on the event loop. It draws no random numbers: the
model stays in evaluation mode, so that its probabilities are those of the engines.
"""

import importlib.util
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager

import anyio.to_thread
import msgspec

from backends.trainers.torch.options import Config as Config  # the adapter's, like the two below
from backends.trainers.torch.recipes import Objective, objective_of
from protocols.adapters import Host
from protocols.errors import Problem
from protocols.sections import Site
from protocols.training import TrainerPort


def check(cfg: Config, site: Site) -> Sequence[Problem]:
    """Return what is wrong: options that do not go together, no model, or no torch to train it with."""
    problems = [
        *_loss_problems(cfg, objective_of(cfg, site.max_tokens)),
        *_return_problems(cfg, objective_of(cfg, site.max_tokens)),
        *_schedule_problems(cfg, site),
    ]
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


def check_ranks(cfg: Config, count: int) -> Sequence[Problem]:
    """Return what is wrong with the options for so many ranks."""
    if cfg.sharding == "no_shard" or count > 1:
        return []
    why, mend = "a single rank has nobody to share with", "give fleet.roles.policy.instances at least 2, or leave it out"
    return [Problem(field="train.sharding", value="'full_shard'", why=why, mend=mend)]


def _loss_problems(cfg: Config, objective: Objective) -> Iterator[Problem]:
    """Find options of the loss that another one leaves without effect, or without what it needs."""
    loss = objective.loss
    if objective.dual_clip is not None and loss not in {"clip", "gspo"}:
        why, mend = f"the loss '{loss}' has no dual clip", "set loss to 'clip' or 'gspo', or leave dual_clip out"
        yield Problem(field="train.dual_clip", value=f"{objective.dual_clip:g}", why=why, mend=mend)
    if objective.importance != "none" and loss != "reinforce" and objective.proximal == "behaviour":
        why = f"the loss '{loss}' has the ratio to the policy that drew the tokens in it already"
        mend = "set proximal to 'start' or loss to 'reinforce', or leave importance out"
        yield Problem(field="train.importance", value=f"'{objective.importance}'", why=why, mend=mend)
    if objective.aggregation == "constant" and objective.aggregation_length is None:
        why, mend = "aggregation = 'constant' divides by it", "give a number of tokens, such as sampling.max_tokens"
        yield Problem(field="train.aggregation_length", value=None, why=why, mend=mend)
    if objective.aggregation != "constant" and objective.aggregation_length is not None:
        why = f"aggregation = '{objective.aggregation}' does not divide by it"
        mend = "set aggregation to 'constant', or leave aggregation_length out"
        yield Problem(field="train.aggregation_length", value=str(objective.aggregation_length), why=why, mend=mend)
    if cfg.reject is not None and cfg.reject.low >= cfg.reject.high:
        why, mend = f"no ratio is between {cfg.reject.low:g} and {cfg.reject.high:g}", "give less than high"
        yield Problem(field="train.reject.low", value=f"{cfg.reject.low:g}", why=why, mend=mend)


def _return_problems(cfg: Config, objective: Objective) -> Iterator[Problem]:
    """Find options of the returns, the critic and the reference that have no effect."""
    returns = objective.returns
    if cfg.gamma is not None and returns == "sample":
        why, mend = "returns = 'sample' discounts nothing", "set returns to 'discounted' or 'gae', or leave gamma out"
        yield Problem(field="train.gamma", value=f"{cfg.gamma:g}", why=why, mend=mend)
    if cfg.lam is not None and returns != "gae":
        why, mend = f"returns = '{returns}' has no critic to weigh", "set returns to 'gae', or leave lam out"
        yield Problem(field="train.lam", value=f"{cfg.lam:g}", why=why, mend=mend)
    if cfg.critic != type(cfg.critic)() and returns != "gae":
        why, mend = f"returns = '{returns}' has no critic", "set returns to 'gae', or leave [train.critic] out"
        yield Problem(field="train.critic", value=repr(msgspec.structs.asdict(cfg.critic)), why=why, mend=mend)
    if cfg.kl.place == "reward" and returns == "sample":
        why = "returns = 'sample' knows no rewards of tokens to take it off"
        mend = "set place to 'loss', or returns to 'discounted' or 'gae'"
        yield Problem(field="train.kl.place", value="'reward'", why=why, mend=mend)


def _schedule_problems(cfg: Config, site: Site) -> Iterator[Problem]:
    """Find a fall of the learning rate that has no end, or one before it begins."""
    schedule = cfg.schedule
    steps = schedule.steps or site.steps
    if schedule.kind == "constant":
        return
    if steps is None:
        why, mend = f"'{schedule.kind}' falls towards it, and the run has no last step", "give a number of steps"
        yield Problem(field="train.schedule.steps", value=None, why=why, mend=mend)
    elif schedule.warmup >= steps:
        why, mend = f"the fall ends at step {steps}, and nothing is left of it", f"give less than {steps}"
        yield Problem(field="train.schedule.warmup", value=str(schedule.warmup), why=why, mend=mend)


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
