"""Parameters, optimizer and gradient window. Synchronous: one thread at a time may use it."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from backends.trainers.torch import Config, ratios
from backends.trainers.torch.aggregation import Totals, token_shares
from backends.trainers.torch.divergence import k3
from backends.trainers.torch.microbatch import MicroBatch, collate
from backends.trainers.torch.objective import token_loss
from backends.trainers.torch.packing import Strip, pack
from backends.trainers.torch.rows import Row, check_identities, trained_rows
from backends.trainers.torch.scores import score_tokens
from backends.trainers.torch.sharing import shareable_width
from protocols.errors import InvariantError
from protocols.messages import DispatchId, RegistrationKey, WeightVersion
from protocols.training import AccumulateReport, BatchLease, StepReport

_MEANS = ("loss", "ratio/mean", "clip_fraction", "entropy", "kl/behaviour")


class _Window(NamedTuple):
    """What has been accumulated."""

    batch: BatchLease
    metrics: dict[str, float]


class Learner:
    """Steps one model.

    Args:
        module: A Hugging Face causal language model; it stays in the mode that it comes in.
        cfg: The options of the trainer.
        interrupt: Called before each micro-batch; may raise.

    Attributes:
        module: As given.
        optimizer: AdamW over every parameter that has a gradient.
        version: Steps that changed parameters.
    """

    def __init__(self, module: Any, cfg: Config, *, interrupt: Callable[[], None]) -> None:
        self.module = module
        self._cfg = cfg
        self._interrupt = interrupt
        self._parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self._parameters, lr=cfg.lr, betas=cfg.betas, eps=cfg.eps, weight_decay=cfg.weight_decay, fused=True
        )
        self._hidden = shareable_width(module)
        self.version = WeightVersion(0)
        self._registration: RegistrationKey | None = None
        self._window: _Window | None = None
        self._report: StepReport | None = None
        for parameter in self._parameters:
            # AdamW passes over a parameter without a gradient: a batch that trains nothing would then differ
            # from one whose gradients are zero, and a run that was loaded from one that was not
            parameter.grad = torch.zeros_like(parameter)

    def warm_up(self) -> None:
        """Run both passes once and forget the gradients: the first ones are slow."""
        row = Row(prompt=(0,), completion=(0,), behaviour=(0.0,), advantage=0.0, weight=1.0, temperature=1.0)
        self._backward(collate([Strip((row,))], self.module.device), Totals.of([row]))
        self.discard()

    def outcome(self, dispatch_id: DispatchId) -> StepReport | None:
        """Return the report of the last step, if it was ``dispatch_id``'s."""
        report = self._report
        return report if report is not None and report.dispatch_id == dispatch_id else None

    def settled(self, batch: BatchLease) -> StepReport | None:
        """Return the report of ``batch`` if it was the last step, else check that it may be the next.

        Raises:
            InvariantError: It may not.
        """
        report = self.outcome(batch.dispatch_id)
        if report is None:
            self.check(batch)
        return report

    def check(self, batch: BatchLease) -> None:
        """Check that ``batch`` may be accumulated now.

        Raises:
            InvariantError: It may not.
        """
        if self.outcome(batch.dispatch_id) is not None:
            raise InvariantError(f"{batch.dispatch_id} is a step already")
        if self._window is not None:
            raise InvariantError(f"{self._window.batch.dispatch_id} is accumulated and neither applied nor discarded")
        if batch.registration != (self._registration or batch.registration):
            raise InvariantError(f"{batch.dispatch_id} is of {batch.registration}, not of {self._registration}")
        if batch.version != self.version:
            raise InvariantError(f"{batch.dispatch_id} starts from version {batch.version}, not from {self.version}")
        check_identities(batch)

    def accumulate(self, batch: BatchLease, payloads: Sequence[Any]) -> AccumulateReport:
        """Add the gradients of a batch; when it raises, there are none.

        Args:
            batch: What to add.
            payloads: One for each of its groups.

        Raises:
            InvariantError: The batch or its payloads are not what they should be.
        """
        self.check(batch)
        rows = list(trained_rows(batch, payloads))
        try:
            metrics = self._accumulate(rows)
        except BaseException:
            self.discard()
            raise
        self._registration = batch.registration
        self._window = _Window(batch, metrics)
        return AccumulateReport(dispatch_id=batch.dispatch_id, metrics=metrics)

    def apply(self, dispatch_id: DispatchId) -> StepReport:
        """Step the optimizer, unless the gradients are not finite, and end the window.

        Raises:
            InvariantError: Something else is accumulated, or nothing.
        """
        window = self._window
        if window is None or window.batch.dispatch_id != dispatch_id:
            raise InvariantError(f"{dispatch_id} is not accumulated")
        try:
            norm = self._step()
        finally:
            self.discard()
        finite = math.isfinite(norm)
        if finite:
            self.version = WeightVersion(self.version + 1)
        self._report = StepReport(
            dispatch_id=dispatch_id,
            version=self.version,
            mutated="yes" if finite else "no",
            consumed=tuple(group.lease_id for group in window.batch.groups),
            metrics=window.metrics | {"grad_norm": norm, "lr": self._cfg.lr, "train/skipped": float(not finite)},
        )
        return self._report

    def train_step(self, batch: BatchLease, payloads: Sequence[Any]) -> StepReport:
        """Accumulate and apply, unless it is the last step already."""
        if (report := self.settled(batch)) is not None:
            return report
        self.accumulate(batch, payloads)
        return self.apply(batch.dispatch_id)

    def discard(self) -> None:
        """Zero the gradients and end the window."""
        self._window = None
        self.optimizer.zero_grad(set_to_none=False)

    def restart(self, version: WeightVersion) -> None:
        """Go on from parameters and optimizer state that were loaded; no step is remembered."""
        self.discard()
        self.version = version
        self._report = None

    def _accumulate(self, rows: Sequence[Row]) -> dict[str, float]:
        totals = Totals.of(rows)
        means = torch.zeros(len(_MEANS), dtype=torch.float64)
        largest, passes, read, filled = 0.0, 0, 0, 0
        for part in pack(rows, self._cfg.micro_batch_tokens, hidden=self._hidden):
            self._interrupt()
            micro = collate(part, self.module.device)
            added, ratio = self._backward(micro, totals)
            means += added
            largest, passes = max(largest, ratio), passes + 1
            read, filled = read + micro.input_ids.numel(), filled + sum(strip.width for strip in part)
        return {
            **dict(zip(_MEANS, means.tolist(), strict=True)),
            "ratio/max": largest,
            "train/tokens": float(sum(len(row.completion) for row in rows)),
            "train/samples": float(len(rows)),
            "train/micro_batches": float(passes),
            "train/padding_fraction": 1 - filled / read if read else 0.0,
        }

    def _backward(self, micro: MicroBatch, totals: Totals) -> tuple[Tensor, float]:
        """Add the gradients of one micro-batch.

        Args:
            micro: Part of a batch.
            totals: Of the whole batch.

        Returns:
            What it adds to the batch's ``_MEANS``, float64 on the CPU; and the largest ratio.
        """
        cfg = self._cfg
        logits = self.module(**micro.inputs(), use_cache=False, logits_to_keep=micro.predicts).logits
        scores = score_tokens(logits, micro.temperature, micro.source, micro.targets, entropy_gradient=cfg.entropy_bonus > 0)
        losses = token_loss(cfg, scores, micro)
        shares = token_shares(micro.weights, micro.sequences, totals, cfg.aggregation, cfg.aggregation_length)
        loss = torch.dot(shares, losses.loss)
        if cfg.entropy_bonus > 0:
            loss = loss - cfg.entropy_bonus * torch.dot(micro.weights, scores.entropy) / totals.tokens
        loss.backward()
        with torch.no_grad():
            kl = k3(ratios.of_tokens(scores.logprobs, micro.behaviour))
            each = torch.stack([losses.ratio, losses.clipped.float(), scores.entropy, kl])
            added = torch.cat([loss[None], each @ micro.weights / totals.tokens])
        return added.double().cpu(), losses.ratio.max().item()

    def _step(self) -> float:
        """Change the parameters if the gradients are finite; returns their global norm before clipping."""
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if norm.isfinite():
            if self._cfg.max_grad_norm > 0:
                torch.nn.utils.clip_grads_with_norm_(self._parameters, self._cfg.max_grad_norm, norm)
            self.optimizer.step()
        return norm.item()
