"""The checkpoints of a run: what its record knows of each, and what lies in its folder. Nothing is started."""

from pathlib import Path
from typing import Literal

from conductor import checkpoints
from conductor.config import RunConfig
from conductor.core.evaluation import due
from conductor.core.registry import CheckpointRegistry
from conductor.keeping import keeping_of
from conductor.past import rebuild
from protocols.ledger import Record
from protocols.messages import Message, WeightVersion

Reason = Literal["latest", "last", "best", "pending"]


class CheckpointStanding(Message, frozen=True, kw_only=True):
    """One checkpoint.

    Attributes:
        name: Of its folder.
        state: ``writing``: it is begun, and not whole; ``missing``: the record knows it, and the disk does not.
        worth: What the evaluation of its version came to; None where there is none.
        kept: Why it is there: ``latest`` is what a resume goes back to, ``last`` what it could if that were damaged,
            ``best`` one of the best, ``pending`` one whose evaluation is still to come, as far as the record knows.
    """

    version: WeightVersion
    name: str
    state: Literal["writing", "whole", "missing"]
    worth: float | None = None
    kept: tuple[Reason, ...] = ()


class Shelf(Message, frozen=True, kw_only=True):
    """All checkpoints of a run.

    Attributes:
        metric, mode: What says which is better, and which end of it.
        latest: What a resume goes back to.
        best: Those that are worth most, the best first.
        checkpoints: The oldest first.
        unknown: Folders that the record does not know. Nothing removes them.
    """

    metric: str
    mode: Literal["max", "min"]
    latest: WeightVersion | None
    best: tuple[WeightVersion, ...]
    checkpoints: tuple[CheckpointStanding, ...]
    unknown: tuple[str, ...]


def shelf(record: Record, cfg: RunConfig) -> Shelf:
    """Say which checkpoints there are, and why.

    Raises:
        CorruptLedger: The events contradict one another.
    """
    registry, wanted = rebuild(record.events).checkpoints, cfg.checkpoint
    folder = checkpoints.folder_of(cfg.run_dir or ".")
    there = checkpoints.complete(folder)
    known = sorted({*registry.whole, *(() if registry.begun is None else (registry.begun,))})
    unknown = [path.name for version, path in there.items() if version not in {*known, *registry.gone}]
    return Shelf(
        metric=wanted.metric,
        mode=wanted.mode,
        latest=max(registry.last, default=None),
        best=registry.best(keeping_of(wanted)),
        checkpoints=tuple(_standing(registry, version, cfg, there.get(version)) for version in known),
        unknown=(*unknown, *sorted(path.name for path in folder.glob(f"{checkpoints.UNKNOWN}*"))),
    )


def _standing(
    registry: CheckpointRegistry, version: WeightVersion, cfg: RunConfig, path: Path | None
) -> CheckpointStanding:
    writing = version not in registry.whole
    keeping = keeping_of(cfg.checkpoint)
    reasons: dict[Reason, bool] = {
        "latest": version == max(registry.last, default=None),
        "last": version in registry.last[:-1],
        "best": version in registry.best(keeping),
        "pending": cfg.checkpoint.keep_best > 0 and _pending(registry, version, cfg),
    }
    return CheckpointStanding(
        version=version,
        name=checkpoints.place_of(Path(), version).name,
        state="writing" if writing else "missing" if path is None else "whole",
        worth=registry.worth(version, keeping),
        kept=tuple(reason for reason, holds in reasons.items() if holds),
    )


def _pending(registry: CheckpointRegistry, version: WeightVersion, cfg: RunConfig) -> bool:
    first, evaluated = registry.first or WeightVersion(0), max(registry.evaluations, default=None)
    return due(cfg.evaluate_every, first=first, evaluated=evaluated, version=version)
