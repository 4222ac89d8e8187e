"""What a run has come to, in numbers. A resume takes all of them back to those of its checkpoint."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from protocols import ledger
from protocols.grading import Grade, GradeFault
from protocols.messages import LeaseId, lease_number


@dataclass(kw_only=True, slots=True)
class Tally:
    """Settled groups and samples, and where the batch and the epoch stand that are being filled.

    Attributes:
        committed: Groups trained.
        filtered, dropped: Groups so settled, by reason.
        trained_samples, masked_samples: Samples of committed groups, with and without a reward.
        filtered_samples, dropped_samples: Samples of groups so settled.
        claims: Batches claimed; ``unclaims`` of them were taken back.
        claimed: Groups of the batches that were not taken back.
        filtered_for_batch: The groups filtered since the last claim.
        gaps: Filtered groups that will not be replaced, while the batch that is short of them is not claimed, in the
            order of admission.
        epoch: The epoch whose prompts are admitted; None: the next one offered.
        progress: Batches claimed and groups filtered when an epoch closed last.
    """

    committed: int = 0
    filtered: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    trained_samples: int = 0
    masked_samples: int = 0
    filtered_samples: int = 0
    dropped_samples: int = 0
    claims: int = 0
    unclaims: int = 0
    claimed: int = 0
    filtered_for_batch: tuple[LeaseId, ...] = ()
    gaps: tuple[LeaseId, ...] = ()
    epoch: int | None = None
    progress: int = 0

    @classmethod
    def of(cls, message: ledger.Tally) -> "Tally":
        """Return what a message holds."""
        values: dict[str, Any] = msgspec.structs.asdict(message)
        values["filtered"], values["dropped"] = Counter(message.filtered), Counter(message.dropped)
        return cls(**values)

    def message(self) -> ledger.Tally:
        """Return these numbers as a message."""
        return msgspec.convert(self, ledger.Tally, from_attributes=True)

    def copy(self) -> "Tally":
        """Return the same numbers, apart from these."""
        return replace(self, filtered=self.filtered.copy(), dropped=self.dropped.copy())

    def forgiven(self, batch: int) -> int:
        """Return how many groups the claimed batches fell short of ``batch``: a short one counts as a whole one."""
        return (self.claims - self.unclaims) * batch - self.claimed

    @property
    def advance(self) -> int:
        """Batches claimed and groups filtered: while it does not grow, nothing is achieved."""
        return self.claims + self.filtered.total()

    def claim(self, groups: int, missing: int = 0) -> None:
        """Count a batch, and begin to fill the next.

        Args:
            groups: That it has.
            missing: That it is short of: so many gaps are behind it.
        """
        self.claims += 1
        self.claimed += groups
        self.filtered_for_batch, self.gaps = (), self.gaps[missing:]

    def unclaim(self, groups: int) -> None:
        """Take back that a batch counted: its step did not happen."""
        self.unclaims += 1
        self.claimed -= groups

    def commit(self, grades: Sequence[Grade | GradeFault]) -> None:
        """Count a trained group."""
        trained = [type(grade) for grade in grades].count(Grade)
        self.committed += 1
        self.trained_samples += trained
        self.masked_samples += len(grades) - trained

    def filter(self, lease_id: LeaseId, samples: int, reason: str, *, replaced: bool) -> None:
        """Count a filtered group; one that is not replaced makes its batch shorter."""
        self.filtered[reason] += 1
        self.filtered_samples += samples
        self.filtered_for_batch = (*self.filtered_for_batch, lease_id)
        if not replaced:
            self.gaps = tuple(sorted((*self.gaps, lease_id), key=lease_number))

    def drop(self, samples: int, reason: str) -> None:
        """Count a dropped group."""
        self.dropped[reason] += 1
        self.dropped_samples += samples

    def close_epoch(self) -> None:
        """Let the next epoch begin."""
        self.epoch = None
        self.progress = self.advance
