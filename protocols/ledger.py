"""The record of ownership: one event for each transition of a lease."""

from typing import Protocol

from protocols.grading import Grade, GradeFault
from protocols.messages import DispatchId, LeaseId, Message, WeightVersion
from protocols.prompts import Prompt
from protocols.rollouts import GroupReceipt


class Admitted(Message, frozen=True, kw_only=True, tag="admitted"):
    """A prompt was lent out for the first time. Written before anything is generated."""

    lease_id: LeaseId
    prompt: Prompt
    group_size: int


class Generating(Message, frozen=True, kw_only=True, tag="generating"):
    """An attempt is about to be sent to the executor."""

    lease_id: LeaseId
    attempt: int


class Graded(Message, frozen=True, kw_only=True, tag="graded"):
    """A group is finished and graded; its receipt as it was minted."""

    lease_id: LeaseId
    receipt: GroupReceipt
    grades: tuple[Grade | GradeFault, ...]


class Filtered(Message, frozen=True, kw_only=True, tag="filtered"):
    """A graded group teaches nothing and will not be trained."""

    lease_id: LeaseId
    reason: str


class Claimed(Message, frozen=True, kw_only=True, tag="claimed"):
    """Graded groups were lent to the trainer. Written before the trainer sees them."""

    dispatch_id: DispatchId
    version: WeightVersion
    leases: tuple[LeaseId, ...]


class Unclaimed(Message, frozen=True, kw_only=True, tag="unclaimed"):
    """A step did not happen and changed nothing: its groups are graded again."""

    dispatch_id: DispatchId


class Committed(Message, frozen=True, kw_only=True, tag="committed"):
    """A step consumed its groups."""

    dispatch_id: DispatchId
    version: WeightVersion
    leases: tuple[LeaseId, ...]


class Aborting(Message, frozen=True, kw_only=True, tag="aborting"):
    """The intent to abort. Written before anything is aborted."""

    lease_id: LeaseId
    reason: str


class AbortConfirmed(Message, frozen=True, kw_only=True, tag="aborted"):
    """Nothing of the attempt runs any more."""

    lease_id: LeaseId


class Readmitted(Message, frozen=True, kw_only=True, tag="readmitted"):
    """An aborted group is admitted again as ``attempt``."""

    lease_id: LeaseId
    attempt: int


class Dropped(Message, frozen=True, kw_only=True, tag="dropped"):
    """A group is given up."""

    lease_id: LeaseId
    reason: str


LedgerEvent = (
    Admitted
    | Generating
    | Graded
    | Filtered
    | Claimed
    | Unclaimed
    | Committed
    | Aborting
    | AbortConfirmed
    | Readmitted
    | Dropped
)


class LedgerPort(Protocol):
    """The record. Appends may be concurrent; they are written in the order of the calls.

    It has no gap: when an append fails, every later one fails too.
    """

    async def append(self, events: tuple[LedgerEvent, ...]) -> None:
        """Write ``events``, all or none; they are as durable as the adapter promises on return.

        Cancelling: they are written all the same.
        """
        ...

    async def replay(self) -> tuple[LedgerEvent, ...]:
        """Return all events in order."""
        ...
