"""What is known of every checkpoint of a run, from its record, and which of them are kept.

A checkpoint is reported twice: before its first byte (``CheckpointBegun``), and when all of it is on the disk
(``Checkpointed``); in between it is pending. What it is worth is known when an evaluation of its version is recorded.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal

from protocols.ledger import (
    CheckpointBegun,
    Checkpointed,
    CheckpointsReleased,
    Compacted,
    Evaluated,
    LedgerEvent,
    Resumed,
    RunStarted,
)
from protocols.messages import WeightVersion


@dataclass(frozen=True, kw_only=True)
class Keeping:
    """Which checkpoints a job wants kept.

    Attributes:
        last: How many of the newest: those that a resume may go back to.
        best: How many of those that were evaluated, besides.
        metric: Of an evaluation, that says which is better.
        mode: Which end of it is the better one.
    """

    last: int
    best: int = 0
    metric: str = "eval/reward/mean"
    mode: Literal["max", "min"] = "max"


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What stays, each the oldest first: ``last`` to go back to, ``held`` for what it is worth or may be."""

    last: tuple[WeightVersion, ...]
    held: tuple[WeightVersion, ...]


class CheckpointRegistry:
    """The checkpoints of a run. It changes by ledger events alone, so a replay of the record rebuilds it.

    Attributes:
        first: The version that the run began with; None: its record does not say yet.
        begun: The one that is being written.
        last: Whole ones that a resume may go back to, the oldest first.
        held: Older whole ones, the oldest first.
        gone: Those that were whole and are kept no longer: a crash may have left their files.
        evaluations: What was recorded of versions that have a checkpoint, or may get one: metrics by name.
    """

    def __init__(self) -> None:
        self.first: WeightVersion | None = None
        self.begun: WeightVersion | None = None
        self.last: tuple[WeightVersion, ...] = ()
        self.held: tuple[WeightVersion, ...] = ()
        self.gone: set[WeightVersion] = set()
        self.evaluations: dict[WeightVersion, dict[str, float]] = {}

    @property
    def whole(self) -> tuple[WeightVersion, ...]:
        """Every checkpoint that there is, the oldest first."""
        return tuple(sorted({*self.last, *self.held}))

    def best(self, keeping: Keeping) -> tuple[WeightVersion, ...]:
        """Return those that were worth most, the best first; of equal ones the newer."""
        return self._best(self.whole, keeping)

    def worth(self, version: WeightVersion, keeping: Keeping) -> float | None:
        """Return what a version was worth; None where no evaluation of it says."""
        return self.evaluations.get(version, {}).get(keeping.metric)

    def decide(
        self,
        keeping: Keeping,
        *,
        pending: Callable[[WeightVersion], bool],
        written: WeightVersion | None = None,
        there: Collection[WeightVersion] | None = None,
    ) -> Kept:
        """Decide what stays.

        Args:
            keeping: What the job wants.
            pending: Whether the evaluation of a version is still to come, so that nobody knows what it is worth.
            written: A checkpoint that has just become whole.
            there: What the disk holds; None: all that the record knows.
        """
        added = () if written is None else (written,)
        last = sorted({*self.last, *added})
        whole = sorted({*last, *self.held})
        if there is not None:
            last, whole = [one for one in last if one in there], [one for one in whole if one in there]
        last = last[-keeping.last :]
        wanted = set(self._best(whole, keeping))
        if keeping.best:
            wanted.update(version for version in whole if pending(version))
        return Kept(last=tuple(last), held=tuple(version for version in whole if version in wanted - set(last)))

    def apply(self, event: LedgerEvent) -> None:
        """Take in the next event of the record; most say nothing of checkpoints."""
        match event:
            case RunStarted(version=version):
                self.first = version
            case CheckpointBegun(version=version):
                self.begun = version
            case Checkpointed(version=version, kept=kept, held=held):
                self.begun = None if self.begun == version else self.begun
                self._keep(tuple(sorted({*kept, version})), held)
            case CheckpointsReleased(versions=versions):
                self._keep(self.last, tuple(one for one in self.held if one not in versions))
            case Evaluated(record=record):
                self.evaluations[WeightVersion(record.step)] = record.metrics
            case Resumed(version=version):
                self._go_back(version)
            case Compacted(cuts=cuts, held=held):
                complete = (cut.version for cut in cuts if cut.complete and cut.version != self.first)
                self.begun = next((cut.version for cut in cuts if cut.begun), None)
                self._keep(tuple(complete), held)
            case _:
                pass

    def _best(self, whole: Collection[WeightVersion], keeping: Keeping) -> tuple[WeightVersion, ...]:
        worth = {version: self.worth(version, keeping) for version in whole}
        sign = 1.0 if keeping.mode == "max" else -1.0
        ranked = sorted((sign * value, version) for version, value in worth.items() if value is not None)
        return tuple(version for _, version in reversed(ranked))[: keeping.best]

    def _keep(self, last: tuple[WeightVersion, ...], held: tuple[WeightVersion, ...]) -> None:
        before = self.whole
        self.last, self.held = last, held
        self.gone = (self.gone | set(before)) - set(self.whole)
        newest = max(self.whole, default=WeightVersion(0))
        self.evaluations = {
            version: found
            for version, found in self.evaluations.items()
            if version > newest or version in self.whole or version == self.begun
        }

    def _go_back(self, version: WeightVersion) -> None:
        """Forget what came later: its versions are made again, of other weights."""
        self.begun = None
        last = {*self.last, *(() if version == self.first else (version,))}
        self.last = tuple(sorted(one for one in last if one <= version))
        self.held = tuple(one for one in self.held if one < version)
        self.gone = {one for one in self.gone if one < version}
        self.evaluations = {one: found for one, found in self.evaluations.items() if one <= version}
