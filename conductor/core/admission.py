"""How many groups may be lent out: the law that bounds work in flight and, on average, age."""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from conductor.core.tally import Tally
from protocols.messages import lease_number


@dataclass(kw_only=True)
class Admission:
    """Grants new leases.

    A batch that was claimed short of groups counts as a whole one, or the next version would be granted more
    than a batch.

    Attributes:
        slots: Most groups running at once.
        batch: Groups of one train step.
        max_age: Weight versions a group may be old; 0 is synchronous, and a fraction is a part of a batch.
        target: Groups wanted in the whole run, in whole batches.
        version: Weights that the engines have confirmed, counted from the start of the run.
        extra: Groups admitted beyond the window while a batch is being filled, to be given up when it is full without
            them.
    """

    slots: int
    batch: int
    max_age: float
    target: int
    version: int = 0
    extra: int = 0

    def wanted(self, tally: Tally, numbers: Iterable[int]) -> int:
        """Return the groups of the batch that is being filled: a whole one, less the gaps among its first groups.

        Args:
            tally: What the run has come to.
            numbers: Of the open groups that no batch has claimed, in the order of admission.
        """
        if not tally.gaps:  # nearly always, and the open groups are many
            return self.batch
        ahead = list(numbers)
        gaps = [lease_number(lease_id) for lease_id in tally.gaps]
        behind = (bisect_left(ahead, gap) + place for place, gap in enumerate(gaps))
        return self.batch - sum(place < self.batch for place in behind)

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
        taken = accepted + tally.forgiven(self.batch) + len(tally.gaps) + running
        window = int((self.max_age + self.version + 1) * self.batch)
        claims = tally.claims - tally.unclaims
        filling = claims <= self.version and claims * self.batch < self.target
        extra = self.extra if filling else 0
        return max(0, min(self.slots - running, window + extra - taken, self.target + extra - taken))

    def wants_more(self, tally: Tally) -> bool:
        """Return whether the run needs more groups than are committed: until then a step may give them up."""
        return tally.committed + tally.forgiven(self.batch) < self.target
