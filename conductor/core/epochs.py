"""The boundary between two epochs: no batch mixes them unless the job carries the remainder over."""

from dataclasses import dataclass
from typing import Literal


@dataclass(kw_only=True)
class EpochGate:
    """Says whether a prompt may be admitted and whether the open epoch is complete.

    Attributes:
        remainder: What becomes of groups at the end of an epoch that do not fill a batch.
        epoch: The epoch whose prompts are admitted.
        ended: The source has no further prompt for it.
    """

    remainder: Literal["train", "drop", "carry"]
    epoch: int | None = None
    ended: bool = False

    def offer(self, epoch: int) -> bool:
        """Return whether a prompt of ``epoch`` may be admitted now; if not, the open epoch has ended."""
        if self.epoch is None or self.remainder == "carry":
            self.epoch = epoch
        self.ended = epoch != self.epoch
        return not self.ended

    def exhaust(self) -> None:
        """The source is empty: the open epoch is the last one."""
        self.ended = True

    def close(self) -> None:
        """All groups of the ended epoch are claimed or settled: the next one may begin."""
        self.epoch = None
        self.ended = False
