"""The record of ownership: one event for each transition of a lease, and what a resume needs beside them."""

from typing import Any, Literal, Protocol

from protocols.grading import Grade, GradeFault
from protocols.incidents import Incident, Scaled
from protocols.messages import DispatchId, LeaseId, Message, RegistrationKey, WeightVersion
from protocols.prompts import Prompt, SourceState
from protocols.rollouts import GroupReceipt
from protocols.tracking import StepRecord


class RunStarted(Message, frozen=True, kw_only=True, tag="run_started"):
    """The first event of a record.

    Attributes:
        run_id: Names the run, however often it is resumed; its checkpoints carry it.
        job: The job as built-in values, for a resume to compare with.
        version: The trainer's version before the first step.
        prompts: Where the source stood.
        fingerprint: Of the prompts.
        resumable: Whether checkpoints are written. If not, a settled lease is final at once.
    """

    run_id: str
    job: dict[str, Any]
    version: WeightVersion
    prompts: SourceState
    fingerprint: str
    resumable: bool = True


class Admitted(Message, frozen=True, kw_only=True, tag="admitted"):
    """A prompt was lent out for the first time. Written before anything is generated."""

    lease_id: LeaseId
    prompt: Prompt
    group_size: int


class Generating(Message, frozen=True, kw_only=True, tag="generating"):
    """An attempt is about to be sent to the executor; no token of it is older than ``version``.

    ``at_s`` is the run's clock, here and in other events: seconds since the first admission, as ``Stepped.seconds``.
    """

    lease_id: LeaseId
    attempt: int
    version: WeightVersion = WeightVersion(0)
    at_s: float = 0.0


class Graded(Message, frozen=True, kw_only=True, tag="graded"):
    """A group is finished and graded; its receipt as it was minted.

    Attributes:
        finished_at_s: When its rollouts were finished, by the run's clock; ``at_s``: when it was graded.
    """

    lease_id: LeaseId
    receipt: GroupReceipt
    grades: tuple[Grade | GradeFault, ...]
    finished_at_s: float = 0.0
    at_s: float = 0.0


class Filtered(Message, frozen=True, kw_only=True, tag="filtered"):
    """A graded group teaches nothing and will not be trained; ``replaced``: another one takes its place."""

    lease_id: LeaseId
    reason: str
    replaced: bool = True


class Claimed(Message, frozen=True, kw_only=True, tag="claimed"):
    """A batch lease: graded groups lent to the trainer for one step. Written before the trainer sees them.

    Attributes:
        registration, version: The parameters that the step may change, and no others.
        leases: In the order of admission; each once.
        missing: Groups that it is short of a whole batch.
    """

    dispatch_id: DispatchId
    registration: RegistrationKey = RegistrationKey()
    version: WeightVersion
    leases: tuple[LeaseId, ...]
    missing: int = 0


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
    """An aborted or reopened group is admitted again as ``attempt``.

    ``failed``: for a failure, which counts against the times that it may be generated.
    """

    lease_id: LeaseId
    attempt: int
    failed: bool = True


class Restored(Message, frozen=True, kw_only=True, tag="restored"):
    """A reopened group is graded as it was before: its samples had been kept."""

    lease_id: LeaseId


class Dropped(Message, frozen=True, kw_only=True, tag="dropped"):
    """A group is given up."""

    lease_id: LeaseId
    reason: str


class EpochClosed(Message, frozen=True, kw_only=True, tag="epoch_closed"):
    """All groups of an epoch are claimed or settled: the next one may begin."""

    epoch: int | None


class Stepped(Message, frozen=True, kw_only=True, tag="stepped"):
    """A train step is closed; no batch is lent at that moment. A checkpoint of its version goes back to here.

    Attributes:
        record: What the trackers were told.
        seconds: From the first admission until now, without the time between two lives of the run.
        failures: Masked samples and retried groups of the whole run until now, by class.
        publishes: When each publish since the last step began and ended, by the same clock.
    """

    record: StepRecord
    seconds: float
    failures: dict[str, int] = {}
    publishes: tuple[tuple[float, float], ...] = ()


class Evaluated(Message, frozen=True, kw_only=True, tag="evaluated"):
    """An evaluation is done; ``record.step`` is the version that it was pinned to. It is in no accounts."""

    record: StepRecord


class CheckpointBegun(Message, frozen=True, kw_only=True, tag="checkpoint_begun"):
    """A checkpoint of ``version``, the last closed step, is about to be written; steps go on meanwhile."""

    version: WeightVersion


class Checkpointed(Message, frozen=True, kw_only=True, tag="checkpointed"):
    """The checkpoint of ``version`` is complete; ``kept`` are all that a resume may go back to, itself among them.

    ``held`` are older ones, kept for what they are worth; what is in neither is about to be removed. ``began_at_s`` and
    ``at_s`` say when it was written, by the run's clock.
    """

    version: WeightVersion
    kept: tuple[WeightVersion, ...]
    held: tuple[WeightVersion, ...] = ()
    began_at_s: float = 0.0
    at_s: float = 0.0


class CheckpointsReleased(Message, frozen=True, kw_only=True, tag="checkpoints_released"):
    """Checkpoints that were held are worth less than others, and are about to be removed."""

    versions: tuple[WeightVersion, ...]


class Resumed(Message, frozen=True, kw_only=True, tag="resumed"):
    """The run goes on from the checkpoint of ``version``.

    Every group that is open, or was settled after the step of that version, is reopened. What the run had come
    to is again what it was then. Of an open group that was graded, receipt and grades are kept, unless newer weights
    than ``version`` made some of it: those are gone.
    """

    version: WeightVersion


class Tally(Message, frozen=True, kw_only=True):
    """What a run has come to, in groups unless the name says otherwise; see ``conductor.core.tally``."""

    committed: int
    filtered: dict[str, int]
    dropped: dict[str, int]
    trained_samples: int
    masked_samples: int
    filtered_samples: int
    dropped_samples: int
    claims: int
    unclaims: int
    claimed: int
    filtered_for_batch: tuple[LeaseId, ...]
    gaps: tuple[LeaseId, ...]
    epoch: int | None
    progress: int


class LeaseRecord(Message, frozen=True, kw_only=True):
    """A lease as it stands; see ``conductor.core.leases``."""

    lease_id: LeaseId
    prompt: Prompt
    group_size: int
    attempt: int
    first_attempt: int
    version: WeightVersion = WeightVersion(0)
    state: Literal[
        "admitted", "generating", "graded", "claimed", "aborting", "aborted", "reopened",
        "committed", "filtered", "dropped",
    ]  # fmt: skip
    receipt: GroupReceipt | None = None
    grades: tuple[Grade | GradeFault, ...] = ()


class Cut(Message, frozen=True, kw_only=True):
    """What a checkpoint of ``version`` goes back to.

    Attributes:
        begun: Whether it is being written.
        complete: Whether there is one.
        admitted, settled: How many leases were when the step of that version was closed.
        tally: What the run had come to.
    """

    version: WeightVersion
    begun: bool = False
    complete: bool
    admitted: int
    settled: int
    tally: Tally


class Compacted(Message, frozen=True, kw_only=True, tag="compacted"):
    """Stands for all before it but what goes before it: ``RunStarted``, steps and evaluations that count, incidents.

    Attributes:
        admitted, samples: Groups and samples admitted.
        position: Of the prompt after the last one admitted; None: none was.
        dispatched: Batches claimed, those of abandoned lives included.
        settled: Leases settled.
        tally: What the run has come to.
        open: Leases that are not settled, in the order of admission.
        recent: Leases that were settled since the oldest checkpoint, in the order of settling.
        dispatches: Batches that are lent.
        cuts: What a resume may go back to.
        held: Checkpoints kept besides, for what they are worth.
    """

    admitted: int
    samples: int
    position: int | None
    dispatched: int
    settled: int
    tally: Tally
    open: tuple[LeaseRecord, ...]
    recent: tuple[LeaseRecord, ...]
    dispatches: tuple[Claimed, ...]
    cuts: tuple[Cut, ...]
    held: tuple[WeightVersion, ...] = ()


LedgerEvent = (
    RunStarted
    | Admitted
    | Generating
    | Graded
    | Filtered
    | Claimed
    | Unclaimed
    | Committed
    | Aborting
    | AbortConfirmed
    | Readmitted
    | Restored
    | Dropped
    | EpochClosed
    | Stepped
    | Evaluated
    | CheckpointBegun
    | Incident
    | Scaled
    | Checkpointed
    | CheckpointsReleased
    | Resumed
    | Compacted
)


class Record(Message, frozen=True, kw_only=True):
    """A whole record, read by somebody who does not write it.

    Attributes:
        events: In order.
        lost: How many events had been durable and are not there any more.
    """

    events: tuple[LedgerEvent, ...]
    lost: int


class LedgerPort(Protocol):
    """The record. Appends may be concurrent; they are written in the order of the calls.

    It has no gap: when an append fails, every later one fails too. One process writes it at a time.
    """

    async def append(self, events: tuple[LedgerEvent, ...]) -> None:
        """Write ``events``, all or none; they are as durable as the adapter promises on return.

        Cancelling: they are written all the same.

        Raises:
            PortFailed: They could not be written, or an earlier append could not.
            CorruptLedger: What was written before turned out to be damaged.
        """
        ...

    async def replay(self, after: int) -> tuple[LedgerEvent, ...]:
        """Return events in order, from behind the first ``after`` on: a page of them, and none where there are no more.

        Whoever goes on until there are none has read them all, and need not hold them all.

        Raises:
            CorruptLedger: An event is not what was written; the message names it by number.
        """
        ...

    async def lost(self) -> int:
        """Return how many events had been durable and were not there any more when the record was opened."""
        ...

    async def compact(self, events: tuple[LedgerEvent, ...]) -> None:
        """Put ``events`` in the place of all that was appended before, at once or not at all.

        Cancelling: it happens all the same.

        Raises:
            PortFailed, CorruptLedger: As ``append``; the record is what it was.
        """
        ...
