"""Settled leases that a resume may still reopen, and the steps that it may go back to."""

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from conductor.core.lease import Lease
from conductor.core.tally import Tally
from protocols import ledger
from protocols.errors import InvariantError
from protocols.messages import WeightVersion


@dataclass(kw_only=True)
class Cut:
    """What a checkpoint goes back to.

    Attributes:
        admitted, settled: How many leases were, when the step of its version was closed.
        tally: What the run had come to.
        begun: Whether a checkpoint is being written.
        complete: Whether there is one; of the steps without, only that which is being written and the last may get it.
    """

    admitted: int
    settled: int
    tally: Tally
    begun: bool = False
    complete: bool = False


class Settlements:
    """Keeps settled leases from the oldest checkpoint on; without any, all are final at once and forgotten.

    Attributes:
        cuts: By version, the oldest first.
        recent: Leases settled since the oldest cut, in the order of settling.
        settled: Leases settled and not taken back.
    """

    def __init__(self) -> None:
        self.cuts: dict[WeightVersion, Cut] = {}
        self.recent: deque[Lease] = deque()
        self.settled = 0

    def add(self, lease: Lease) -> None:
        """Take in a lease that is settled."""
        self.settled += 1
        if self.cuts:
            self.recent.append(lease.bare())

    def begin(self, version: WeightVersion, tally: Tally, *, admitted: int) -> None:
        """Remember what the run starts from, which counts as a checkpoint."""
        self.cuts[version] = Cut(admitted=admitted, settled=self.settled, tally=tally.copy(), complete=True)

    def step(self, version: WeightVersion, tally: Tally, *, admitted: int) -> None:
        """Remember what a checkpoint of a closed step would go back to, in the place of the step before it."""
        if not self.cuts:
            return
        self.cuts = {known: cut for known, cut in self.cuts.items() if cut.begun or cut.complete}
        self.cuts[version] = Cut(admitted=admitted, settled=self.settled, tally=tally.copy())

    def write(self, version: WeightVersion) -> None:
        """Keep what a checkpoint goes back to that is being written, while steps go on; of another one no more.

        Raises:
            InvariantError: ``version`` is not the last step.
        """
        if version not in self.cuts:
            raise InvariantError(f"a checkpoint of v{version} begins, and the record knows no such step")
        for known, cut in self.cuts.items():
            cut.begun = known == version

    def complete(self, version: WeightVersion, kept: Collection[WeightVersion]) -> None:
        """Forget the checkpoints that are not kept, and what only they could reopen.

        Raises:
            InvariantError: It is neither of the last step nor was it begun.
        """
        if version not in self.cuts:
            raise InvariantError(f"there is a checkpoint of v{version}, and the record knows no such step")
        self.cuts[version].begun, self.cuts[version].complete = False, True
        self.cuts = {known: cut for known, cut in self.cuts.items() if known in kept or known >= version}
        oldest = next(iter(self.cuts.values())).settled
        while self.settled - len(self.recent) < oldest:
            self.recent.popleft()

    def take_back(self, version: WeightVersion) -> tuple[Tally, list[Lease]]:
        """Go back to a checkpoint; returns the tally of then and the leases settled since, in that order.

        Raises:
            InvariantError: There is no such checkpoint in the record.
        """
        if version not in self.cuts:
            raise InvariantError(f"the record knows no checkpoint of v{version}; it knows {sorted(self.cuts)}")
        cut = self.cuts[version]
        cut.begun, cut.complete = False, True
        self.cuts = {known: other for known, other in self.cuts.items() if known <= version}
        reopened = [self.recent.pop() for _ in range(self.settled - cut.settled)]
        self.settled = cut.settled
        return cut.tally.copy(), reopened[::-1]

    def messages(self) -> tuple[ledger.Cut, ...]:
        """Return the cuts as messages."""
        return tuple(
            ledger.Cut(
                version=version,
                begun=cut.begun,
                complete=cut.complete,
                admitted=cut.admitted,
                settled=cut.settled,
                tally=cut.tally.message(),
            )
            for version, cut in self.cuts.items()
        )

    def restore(self, settled: int, recent: Iterable[Lease], cuts: Iterable[ledger.Cut]) -> None:
        """Become what a summary of the record says."""
        self.settled = settled
        self.recent = deque(recent)
        self.cuts = {
            cut.version: Cut(
                admitted=cut.admitted,
                settled=cut.settled,
                tally=Tally.of(cut.tally),
                begun=cut.begun,
                complete=cut.complete,
            )
            for cut in cuts
        }
