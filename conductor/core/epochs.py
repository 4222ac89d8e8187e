"""The boundary between two epochs: no batch mixes them unless the job carries the remainder over."""

from dataclasses import dataclass
from typing import Literal

from conductor.core.tally import Tally


@dataclass(kw_only=True)
class EpochGate:
    """Says whether a prompt may be admitted and whether the open epoch is complete.

    Attributes:
        remainder: What becomes of groups at the end of an epoch that do not fill a batch.
        ended: No further prompt comes for the open epoch.
        last: The prompts are exhausted.
    """

    remainder: Literal["train", "drop", "carry"]
    ended: bool = False
    last: bool = False

    def offer(self, epoch: int, tally: Tally) -> bool:
        """Return whether a prompt of ``epoch`` may be admitted now; if not, the open epoch has ended."""
        self.ended = self.remainder != "carry" and tally.epoch not in {None, epoch}
        return not self.ended

    def exhaust(self) -> None:
        """There are no more prompts: the open epoch is the last one."""
        self.ended = self.last = True

    def close(self, tally: Tally) -> bool:
        """All groups of the ended epoch are claimed or settled: the next one, if there is one, may begin.

        Returns:
            Whether the epoch achieved anything, or was the last one. If not, the next one would not either, and
            the run would never end.
        """
        self.ended = False
        return self.last or tally.advance > tally.progress
