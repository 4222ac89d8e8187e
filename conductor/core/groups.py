"""What a sampler is told of the open leases."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from conductor.core.lease import Lease, State
from conductor.core.staleness import Group
from protocols.messages import WeightVersion, lease_number

_TRAINABLE = frozenset({State.ADMITTED, State.GENERATING, State.GRADED})


@dataclass(frozen=True, slots=True)
class OpenGroups:
    """The open leases that may still be trained; those of a batch may not.

    They are looked through when somebody iterates over them, and most decisions need none of them.

    Attributes:
        leases: The table, or some of its leases, in the order of admission.
        serving: The version that the engines serve: what has not begun will be no older.
    """

    leases: Iterable[Lease]
    serving: WeightVersion

    def __iter__(self) -> Iterator[Group]:
        """Iterate over them as they are now."""
        for lease in self.leases:
            if lease.state in _TRAINABLE:
                yield Group(
                    lease_id=lease.lease_id,
                    number=lease_number(lease.lease_id),
                    version=self.serving if lease.state is State.ADMITTED else lease.version,
                    ready=lease.state is State.GRADED,
                )
