"""How many groups may be lent out: the law that bounds work in flight and, on average, age."""

from dataclasses import dataclass


@dataclass(kw_only=True)
class Admission:
    """Grants new leases.

    Attributes:
        slots: Most groups running at once.
        batch: Groups of one train step.
        max_age: Weight versions a group may be old; 0 is synchronous.
        target: Groups wanted in the whole run, in whole batches.
        version: Weights that the engines have confirmed, counted from the start of the run.
        forgiven: Groups that short batches were short of: a short batch counts as a whole one, or the
            next version would be granted more than a batch.
    """

    slots: int
    batch: int
    max_age: int
    target: int
    version: int = 0
    forgiven: int = 0

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
        taken = accepted + self.forgiven + running
        window = (self.max_age + self.version + 1) * self.batch
        return max(0, min(self.slots - running, window - taken, self.target - taken))

    def wants_more(self, *, accepted: int) -> bool:
        """Return whether the run needs more groups than it has accepted."""
        return accepted + self.forgiven < self.target
