"""How many groups may be lent out: the law that bounds work in flight and, on average, age."""

from dataclasses import dataclass

from conductor.core.tally import Tally


@dataclass(kw_only=True)
class Admission:
    """Grants new leases.

    A batch that was claimed short of groups counts as a whole one, or the next version would be granted more
    than a batch.

    Attributes:
        slots: Most groups running at once.
        batch: Groups of one train step.
        max_age: Weight versions a group may be old; 0 is synchronous.
        target: Groups wanted in the whole run, in whole batches.
        version: Weights that the engines have confirmed, counted from the start of the run.
    """

    slots: int
    batch: int
    max_age: int
    target: int
    version: int = 0

    def wanted(self, tally: Tally) -> int:
        """Return the groups of the batch that is being filled; 0 or less where it would be empty."""
        return self.batch - tally.short

    def grants(self, tally: Tally, *, accepted: int, running: int) -> int:
        """Return how many groups may be admitted now.

        Args:
            tally: What the run has come to.
            accepted: Groups graded and kept so far, trained ones included.
            running: Groups lent out and not graded.

        Returns:
            ``min(slots - running, (max_age + version + 1) * batch - (accepted + running))``, and never
            more than the run still wants.

        Source:
            AReaL, arXiv 2505.24298, equation 3, with the window counted in batches.
        """
        taken = accepted + tally.forgiven(self.batch) + tally.short + running
        window = (self.max_age + self.version + 1) * self.batch
        return max(0, min(self.slots - running, window - taken, self.target - taken))

    def wants_more(self, tally: Tally) -> bool:
        """Return whether the run needs more groups than are committed: until then a step may give them up."""
        return tally.committed + tally.forgiven(self.batch) < self.target
