"""What a sampler is told of the open leases."""

from collections.abc import Iterator
from dataclasses import dataclass

from conductor.core.lease import State
from conductor.core.leases import LeaseTable
from conductor.core.staleness import Group
from protocols.messages import WeightVersion, lease_number

_TRAINABLE = frozenset({State.ADMITTED, State.GENERATING, State.GRADED})


@dataclass(frozen=True, slots=True)
class OpenGroups:
    """The open leases that may still be trained; those of a batch may not.

    They are looked through when somebody iterates over them, and most decisions need none of them.

    Attributes:
        table: Where they are, in the order of admission.
        serving: The version that the engines serve: what has not begun will be no older.
    """

    table: LeaseTable
    serving: WeightVersion

    def __iter__(self) -> Iterator[Group]:
        """Iterate over them as they are now."""
        for lease in self.table:
            if lease.state in _TRAINABLE:
                yield Group(
                    lease_id=lease.lease_id,
                    number=lease_number(lease.lease_id),
                    version=self.serving if lease.state is State.ADMITTED else lease.version,
                    ready=lease.state is State.GRADED,
                )
