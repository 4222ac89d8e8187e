"""How many groups may be lent out: the law that bounds work in flight and, on average, age."""

from dataclasses import dataclass


@dataclass(kw_only=True)
class Admission:
    """Grants new leases, and counts what the batch that is being filled has to do without.

    Attributes:
        slots: Most groups running at once.
        batch: Groups of one train step.
        max_age: Weight versions a group may be old; 0 is synchronous.
        target: Groups wanted in the whole run, in whole batches.
        version: Weights that the engines have confirmed, counted from the start of the run.
        forgiven: Groups that short batches were short of: a short batch counts as a whole one, or the
            next version would be granted more than a batch.
        filtered: Groups filtered since the last claim.
        short: Of these, groups that will not be replaced.
    """

    slots: int
    batch: int
    max_age: int
    target: int
    version: int = 0
    forgiven: int = 0
    filtered: int = 0
    short: int = 0

    @property
    def wanted(self) -> int:
        """Groups of the batch that is being filled; 0 or less where it would be empty."""
        return self.batch - self.short

    def grants(self, *, accepted: int, running: int) -> int:
        """Return how many groups may be admitted now.

        Args:
            accepted: Groups graded and kept so far, trained ones included.
            running: Groups lent out and not graded.

        Returns:
            ``min(slots - running, (max_age + version + 1) * batch - (accepted + running))``, and never
            more than the run still wants.

        Source:
            AReaL, arXiv 2505.24298, equation 3, with the window counted in batches.
        """
        taken = accepted + self.forgiven + self.short + running
        window = (self.max_age + self.version + 1) * self.batch
        return max(0, min(self.slots - running, window - taken, self.target - taken))

    def wants_more(self, *, committed: int) -> bool:
        """Return whether the run needs more groups than are committed: until then a step may give them up."""
        return committed + self.forgiven < self.target

    def filter(self, *, replaced: bool) -> None:
        """Count a filtered group; one that is not replaced makes the batch shorter."""
        self.filtered += 1
        self.short += not replaced

    def claim(self, groups: int) -> None:
        """Count a batch of ``groups`` as a whole one, and begin to fill the next."""
        self.forgiven += self.batch - groups
        self.filtered = self.short = 0

    def unclaim(self, groups: int) -> None:
        """Take back that a batch of ``groups`` counted as a whole one: its step did not happen."""
        self.forgiven -= self.batch - groups
