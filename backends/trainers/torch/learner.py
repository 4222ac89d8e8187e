"""Models, optimizers and the gradient window. Synchronous: one thread at a time may use it."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from backends.trainers.torch import mismatch
from backends.trainers.torch.layout import Layout
from backends.trainers.torch.models import Models
from backends.trainers.torch.options import Config
from backends.trainers.torch.passes import backward
from backends.trainers.torch.preparation import Minibatch, Preparation
from backends.trainers.torch.ranks import Ranks
from backends.trainers.torch.recipes import objective_of
from backends.trainers.torch.replicated import Replicated
from backends.trainers.torch.rows import Row, check_identities, trained_groups
from backends.trainers.torch.schedule import learning_rate
from backends.trainers.torch.sharing import shareable_width
from backends.trainers.torch.stepper import Stepper
from protocols.errors import InvariantError
from protocols.messages import DispatchId, RegistrationKey, WeightVersion
from protocols.sections import Site
from protocols.training import AccumulateReport, BatchLease, StepReport

_READ, _FILLED = "read", "filled"
"""Tokens of the passes, padding counted and not."""


class _Window(NamedTuple):
    """What has been accumulated: the gradients are those of the first minibatch."""

    batch: BatchLease
    minibatches: list[Minibatch]
    metrics: dict[str, float]


class Progress(NamedTuple):
    """Where a learner stands between two steps.

    Attributes:
        version: Steps that changed parameters.
        registration: Whose batches it trains; None before the first.
        report: Of the last step.
    """

    version: WeightVersion
    registration: RegistrationKey | None
    report: StepReport | None


class Learner:
    """Steps a policy, and a critic where it has one.

    One step of the port is ``epochs x minibatches`` steps of the optimizers, and one version.

    Args:
        models: What is trained, and what it is compared with.
        cfg: The options of the trainer.
        site: How long the run and its completions are.
        interrupt: Called before each micro-batch, until parameters change; may raise.
        layout: Who else trains this policy, and what each holds of it; None: nobody.

    Attributes:
        layout: As given, or one process's.
        steppers: The policy's and the critic's, by the name of the role; where each rank holds a part, from ``place`` on.
        version: Steps that changed parameters.
    """

    def __init__(
        self, models: Models, cfg: Config, *, site: Site, interrupt: Callable[[], None], layout: Layout | None = None
    ) -> None:
        self._models = models
        self._cfg = cfg
        self._steps = cfg.schedule.steps or site.steps
        self._objective = objective_of(cfg, site.max_tokens)
        self._interrupt = interrupt
        self.layout = layout or Replicated(Ranks(0.0))
        self._ranks = self.layout.ranks
        hidden = shareable_width(models.policy)
        self._preparation = Preparation(
            models, cfg, self._objective, hidden=hidden, interrupt=interrupt, layout=self.layout
        )
        self.steppers = {} if self.layout.parts else self._new_steppers()
        self._base_rates = {"policy": cfg.lr, "critic": cfg.critic.lr or cfg.lr}
        self.version = WeightVersion(0)
        self._half_way: DispatchId | None = None
        self._registration: RegistrationKey | None = None
        self._window: _Window | None = None
        self._report: StepReport | None = None

    @property
    def module(self) -> Any:
        """The policy."""
        return self._models.policy

    @property
    def progress(self) -> Progress:
        """Where it stands between two steps."""
        return Progress(self.version, self._registration, self._report)

    @property
    def whole(self) -> bool:
        """Whether its parameters are those of a version, and not half-way to the next."""
        return self._half_way is None

    def warm_up(self) -> None:
        """Run both passes once and forget the gradients: the first ones are slow. Not where it would take all ranks."""
        if self.layout.parts:
            return
        row = Row(
            prompt=(0,), completion=(0,), behaviour=(0.0,), advantage=0.0, reward=0.0, weight=1.0, temperature=1.0
        )
        (minibatch, *_) = self._preparation.prepare([[row]])
        self._pass(minibatch, self._interrupt)
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
        if self._half_way is not None:
            raise InvariantError(f"the parameters are half-way through {self._half_way}; load a checkpoint")
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
        """Prepare a batch and add the gradients of its first minibatch; when it raises, there are none.

        Args:
            batch: What to add.
            payloads: One for each of its groups.

        Raises:
            InvariantError: The batch or its payloads are not what they should be.
        """
        self.check(batch)
        groups = trained_groups(batch, payloads)
        try:
            minibatches = self._preparation.prepare(groups)
            metrics = self._pass(minibatches[0], self._interrupt)
        except BaseException:
            self.discard()
            raise
        self._registration = batch.registration
        self._window = _Window(batch, minibatches, metrics)
        return AccumulateReport(dispatch_id=batch.dispatch_id, metrics=metrics)

    def apply(self, dispatch_id: DispatchId) -> StepReport:
        """Step the optimizers, go on through the batch as often as is asked for, and end the window.

        A minibatch whose gradients are not finite changes nothing. Where something is raised between two optimizer
        steps, the report says ``partial``, and only a checkpoint leads on.

        Raises:
            InvariantError: Something else is accumulated, or nothing.
        """
        window = self._window
        if window is None or window.batch.dispatch_id != dispatch_id:
            raise InvariantError(f"{dispatch_id} is not accumulated")
        try:
            metrics = self._updates(window)
        except BaseException:
            self._report = self._settle(window, "partial" if self._half_way else "no", {})
            raise
        finally:
            self.discard()
        self._half_way = None
        changed = metrics["train/skipped"] < 1
        if changed:
            self.version = WeightVersion(self.version + 1)
        self._report = self._settle(window, "yes" if changed else "no", metrics)
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
        self.layout.forget_passes()
        for stepper in self.steppers.values():
            stepper.zero()

    def restart(self, version: WeightVersion) -> None:
        """Go on from parameters and optimizer states that were loaded; no step is remembered."""
        self.discard()
        self.version = version
        self._half_way = None
        self._report = None

    def place(self, rank: int, world: int) -> None:
        """Lay out what is trained for one rank of several; the first time says which for good where each holds a part.

        Raises:
            UserError: The models cannot be laid out so.
        """
        if self.layout.place(self._models, rank, world):
            self.steppers = self._new_steppers()

    def take_over(self, source: int) -> None:
        """Go on from where ``source`` stands. All ranks call it at once."""
        progress = self._ranks.share(self.progress, source)
        self.layout.take_over(self.steppers, source)
        self.restart(progress.version)
        self._registration = progress.registration
        self._report = progress.report

    def _new_steppers(self) -> dict[str, Stepper]:
        trained = {"policy": self._models.policy, "critic": self._models.critic}
        return {name: Stepper(module, self._cfg) for name, module in trained.items() if module is not None}

    def _settle(
        self, window: _Window, mutated: Literal["no", "partial", "yes"], metrics: dict[str, float]
    ) -> StepReport:
        return StepReport(
            dispatch_id=window.batch.dispatch_id,
            version=self.version,
            mutated=mutated,
            consumed=tuple(group.lease_id for group in window.batch.groups),
            metrics=metrics,
        )

    def _updates(self, window: _Window) -> dict[str, float]:
        """Make all optimizer steps of a batch; returns the means of their metrics."""
        rates = {name: self._rate(name) for name in self.steppers}
        each = [window.metrics | self._step(window, rates)]
        order = [minibatch for _ in range(self._cfg.epochs) for minibatch in window.minibatches]
        for minibatch in order[1:]:
            for stepper in self.steppers.values():
                stepper.zero()
            metrics = self._pass(minibatch, _go_on)  # half of a step is of no use to anybody
            each.append(metrics | self._step(window, rates))
        metrics = {name: math.fsum(one[name] for one in each) / len(each) for name in each[0]}
        metrics["ratio/max"] = max(one["ratio/max"] for one in each)
        for name in (mismatch.APART, mismatch.LARGEST, mismatch.RATIO, mismatch.ESS):
            metrics[name] = each[0][name]  # later ones tell what this step has changed
        metrics["train/updates"] = float(len(each))
        for name in ("train/tokens", "train/samples", "train/micro_batches"):
            metrics[name] *= len(window.minibatches)  # of one pass over the batch
        return metrics | {"lr": rates["policy"]}

    def _step(self, window: _Window, rates: dict[str, float]) -> dict[str, float]:
        """Change parameters if all gradients are finite; returns their norms before clipping."""
        norms = {name: self.layout.norm(stepper.gradients) for name, stepper in self.steppers.items()}
        finite = all(bool(norm.isfinite()) for norm in norms.values())
        if finite:
            self._half_way = window.batch.dispatch_id
            for name, stepper in self.steppers.items():
                stepper.step(norms[name], rates[name])
        values = {"grad_norm" if name == "policy" else f"{name}/grad_norm": norms[name].item() for name in norms}
        return values | {"train/skipped": float(not finite)}

    def _rate(self, name: str) -> float:
        schedule = self._cfg.schedule
        return learning_rate(
            self.version,
            base=self._base_rates[name],
            schedule=schedule.kind,
            warmup=schedule.warmup,
            total=self._steps,
            floor=schedule.floor,
        )

    def _pass(self, minibatch: Minibatch, interrupt: Callable[[], None]) -> dict[str, float]:
        """Add the gradients of a minibatch, of all ranks."""
        sums: dict[str, float] = {}
        largest, apart, read, filled = 0.0, 0.0, 0, 0
        for part in minibatch.parts:
            interrupt()
            added = backward(part, minibatch.totals, self._models, self._cfg, self._objective)
            for name, value in added.sums.items():
                sums[name] = sums.get(name, 0.0) + value
            largest, apart = max(largest, added.largest), max(apart, added.mismatch)
            read, filled = read + part.micro.input_ids.numel(), filled + part.read
        for part in minibatch.idle:
            interrupt()
            backward(part, minibatch.totals, self._models, self._cfg, self._objective)
        for stepper in self.steppers.values():
            self.layout.add_up_gradients(stepper.parameters)
        sums |= {
            "train/tokens": float(sum(len(part.micro.targets) for part in minibatch.parts)),
            "train/samples": float(sum(len(part.micro.rewards) for part in minibatch.parts)),
            "train/micro_batches": float(len(minibatch.parts)),
            _READ: float(read),
            _FILLED: float(filled),
        }
        sums = self._ranks.add_up(sums)
        read, filled = sums.pop(_READ), sums.pop(_FILLED)
        return {
            **dict.fromkeys(("loss", "ratio/mean", "clip_fraction", "entropy", "kl/behaviour"), 0.0),
            **mismatch.concluded(sums),
            mismatch.LARGEST: self._ranks.largest(apart),
            "ratio/max": self._ranks.largest(largest),
            "train/padding_fraction": 1 - filled / read if read else 0.0,
        }


def _go_on() -> None:
    """Interrupt nothing."""
