"""How often one cause may fail in a row: its budget, which any success refills."""

import math
from dataclasses import dataclass, field

from protocols.errors import BudgetExhausted
from protocols.pauses import pause_s


@dataclass(kw_only=True)
class Patience:
    """Counts the failures of one cause, whoever they hit.

    When it is down, all who need it fail together: a failure counts for all whose calls began before a pause was over.

    Attributes:
        what: The cause, for people: ``grading``.
        allowed: Failures in a row that are put up with.
        failures: So many there were.
        successes: Since the run began.
    """

    what: str
    allowed: int
    failures: int = 0
    successes: int = 0
    _counts_from: float = field(default=-math.inf, repr=False)

    def succeed(self) -> None:
        """Count a success."""
        self.failures = 0
        self.successes += 1

    def fail(self, error: Exception, *, began: float, now: float) -> None:
        """Count a failure.

        Args:
            error: It.
            began: When the call began that failed, in seconds of the loop's clock.
            now: When it failed.

        Raises:
            BudgetExhausted: It is one too many.
        """
        if began < self._counts_from:
            return
        self.failures += 1
        self._counts_from = now + pause_s(self.failures, self.what)
        if self.failures > self.allowed:
            raise BudgetExhausted(
                what=self.what, spent=self.failures, allowed=self.allowed, field="retries", last=str(error)
            ) from error
