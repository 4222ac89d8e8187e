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
        last: The source is empty.
        progress: Batches claimed and groups filtered when an epoch closed last.
    """

    remainder: Literal["train", "drop", "carry"]
    epoch: int | None = None
    ended: bool = False
    last: bool = False
    progress: int = 0

    def offer(self, epoch: int) -> bool:
        """Return whether a prompt of ``epoch`` may be admitted now; if not, the open epoch has ended."""
        if self.epoch is None or self.remainder == "carry":
            self.epoch = epoch
        self.ended = epoch != self.epoch
        return not self.ended

    def exhaust(self) -> None:
        """The source is empty: the open epoch is the last one."""
        self.ended = self.last = True

    def close(self, *, progress: int) -> bool:
        """All groups of the ended epoch are claimed or settled: the next one, if there is one, may begin.

        Args:
            progress: Batches claimed and groups filtered so far, in the whole run.

        Returns:
            Whether the epoch added any, or was the last one. If not, the next one would not either, and the
            run would never end.
        """
        fruitful = self.last or progress > self.progress
        self.progress = progress
        self.epoch = None
        self.ended = False
        return fruitful
