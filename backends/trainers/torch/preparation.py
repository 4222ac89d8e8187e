"""What is known of a batch before the policy changes: micro-batches, and what other models say of their tokens."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from backends.trainers.torch import ratios
from backends.trainers.torch.aggregation import Totals
from backends.trainers.torch.divergence import estimate
from backends.trainers.torch.layout import Layout
from backends.trainers.torch.microbatch import MicroBatch, collate
from backends.trainers.torch.models import Models
from backends.trainers.torch.options import Config
from backends.trainers.torch.packing import Strip, pack
from backends.trainers.torch.ranks import Ranks
from backends.trainers.torch.recipes import Objective
from backends.trainers.torch.returns import discounted_returns, gae, token_rewards, whiten
from backends.trainers.torch.rows import Row


_NOTHING = Row(prompt=(0,), completion=(0,), behaviour=(0.0,), advantage=0.0, reward=0.0, weight=0.0, temperature=1.0)
"""The shortest sample there is, with no weight in any sum."""


class Part(NamedTuple):
    """A micro-batch and what was computed for it; ``N`` tokens.

    Attributes:
        micro: With the advantages that are trained on.
        read: Tokens that its forward pass reads, without padding.
        proximal: Log-probabilities of the policy when the batch came, shape ``[N]``; None where nobody asks.
        reference: Of the reference, shape ``[N]``; None where there is none.
        values: Of the critic when the batch came, shape ``[N]``; None without one.
        returns: What it should have said, shape ``[N]``.
    """

    micro: MicroBatch
    read: int
    proximal: Tensor | None = None
    reference: Tensor | None = None
    values: Tensor | None = None
    returns: Tensor | None = None


class Minibatch(NamedTuple):
    """What one optimizer step is made of.

    Attributes:
        parts: One forward and backward pass each.
        idle: Passes that change nothing and count nowhere, for other ranks to make theirs.
        totals: Of all of them: the denominators of the loss.
    """

    parts: list[Part]
    idle: list[Part]
    totals: Totals


class Preparation:
    """Turns the groups of a batch into minibatches.

    Args:
        models: As they are when the batch comes.
        cfg: Budgets and coefficients.
        objective: Which numbers are needed.
        hidden: Width of a model whose samples may share prompts; None: they may not.
        interrupt: Called before each pass; may raise.
        layout: Who else has a part of the batch, and how many passes that takes.
    """

    def __init__(
        self,
        models: Models,
        cfg: Config,
        objective: Objective,
        *,
        hidden: int | None,
        interrupt: Callable[[], None],
        layout: Layout,
    ) -> None:
        self._models = models
        self._cfg = cfg
        self._objective = objective
        self._hidden = hidden
        self._interrupt = interrupt
        self._layout = layout
        self._ranks = layout.ranks
        updates = cfg.epochs * cfg.minibatches
        self._needs_proximal = objective.proximal == "start" and updates > 1
        self._needs_passes = self._needs_proximal or models.reference is not None or models.critic is not None

    def prepare(self, groups: Sequence[list[Row]]) -> list[Minibatch]:
        """Split the groups into ``minibatches`` parts, or as many as there are groups; at least one, maybe empty.

        Args:
            groups: All of the batch; those that other ranks train are empty.
        """
        split = list(_split(groups, self._cfg.minibatches))
        micros = [list(self._micro_batches(rows)) for rows in split]
        spare = self._layout.idle([len(each) for each in micros])
        parts = [[self._part(micro, read) for micro, read in each] for each in micros]
        idle = [[self._idle_part() for _ in range(count)] for count in spare]
        totals = self._of_all_ranks([Totals.of(rows) for rows in split])
        minibatches = [Minibatch(*each) for each in zip(parts, idle, totals, strict=True)]
        if not self._objective.whiten:
            return minibatches
        return _whitened(minibatches, self._ranks)

    def _of_all_ranks(self, totals: Sequence[Totals]) -> list[Totals]:
        own = {f"{index}/{name}": value for index, one in enumerate(totals) for name, value in one._asdict().items()}
        sums = self._ranks.add_up(own)
        return [Totals(sums[f"{index}/tokens"], sums[f"{index}/samples"]) for index in range(len(totals))]

    def _micro_batches(self, rows: Sequence[Row]) -> Iterator[tuple[MicroBatch, int]]:
        for strips in pack(rows, self._cfg.micro_batch_tokens, hidden=self._hidden):
            yield collate(strips, self._models.policy.device), sum(strip.width for strip in strips)

    @torch.no_grad()
    def _part(self, micro: MicroBatch, read: int) -> Part:
        if self._needs_passes:
            self._interrupt()
        part = Part(
            micro,
            read,
            proximal=self._models.score(micro).logprobs if self._needs_proximal else None,
            reference=self._models.reference_logprobs(micro),
            values=None if self._models.critic is None else self._models.values(micro),
        )
        return self._with_returns(part)

    def _idle_part(self) -> Part:
        return self._part(collate([Strip((_NOTHING,))], self._models.policy.device), 0)

    def _with_returns(self, part: Part) -> Part:
        micro, objective = part.micro, self._objective
        if objective.returns == "sample":
            return part
        price = self._cfg.kl.coef if self._cfg.kl.place == "reward" else 0.0
        kl = None
        if price and part.reference is not None:
            kl = estimate(ratios.of_tokens(part.reference, micro.behaviour), self._cfg.kl.estimator)
        rewards = token_rewards(micro.rewards, micro.sequences, kl, price)
        if objective.returns == "discounted":
            returns = discounted_returns(rewards, micro.sequences, objective.gamma)
            return part._replace(micro=micro._replace(advantages=returns), returns=returns)
        assert part.values is not None
        estimates = gae(rewards, part.values, micro.sequences, objective.gamma, objective.lam)
        return part._replace(micro=micro._replace(advantages=estimates.advantages), returns=estimates.returns)


def _split(groups: Sequence[list[Row]], count: int) -> Iterator[list[Row]]:
    """Split groups into parts of like size, in order; a group stays whole, for its samples share a prompt."""
    count = max(1, min(count, len(groups)))
    rest = iter(groups)
    for index in range(count):
        size = len(groups) // count + (index < len(groups) % count)
        yield [row for group in islice(rest, size) for row in group]


def _whitened(minibatches: Sequence[Minibatch], ranks: Ranks) -> list[Minibatch]:
    """Whiten the advantages of all tokens of the batch."""
    micros = [part.micro for minibatch in minibatches for part in minibatch.parts]
    none = [torch.empty(0)] if not micros else []
    advantages = torch.cat([*(one.advantages for one in micros), *none])
    white = whiten(advantages, torch.cat([*(one.weights for one in micros), *none]), ranks.add_up_tensor)
    pieces = iter(white.split([len(one.advantages) for one in micros]))
    return [
        minibatch._replace(
            parts=[part._replace(micro=part.micro._replace(advantages=next(pieces))) for part in minibatch.parts]
        )
        for minibatch in minibatches
    ]
