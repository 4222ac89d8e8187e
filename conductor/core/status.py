"""Where a run stands at one moment, as a message: for whoever asks, and for the verdict of a run that stands still."""

from conductor.result import Accounts, SampleAccounts
from protocols.messages import LeaseId, Message, WeightVersion, WorkerId

MOST_LISTED = 20
"""Of waits, groups and engines: a status says how many there are, and lists the oldest."""


class WaitStatus(Message, frozen=True, kw_only=True):
    """A wait that is open; ``of`` is the id it is for, ``deadline_s`` what it may take in all."""

    call: str
    of: str
    seconds: float
    deadline_s: float


class GroupStatus(Message, frozen=True, kw_only=True):
    """A group that is lent out, and the call that it waits for; ``call`` is empty where there is none."""

    lease_id: LeaseId
    state: str
    attempt: int
    call: str = ""
    seconds: float = 0.0
    deadline_s: float = 0.0


class EngineStanding(Message, frozen=True, kw_only=True):
    """An engine as it says of itself.

    Attributes:
        answers: Whether it said anything.
        held: How many of the live requests wait for their turn.
        allowed: The most that are worked on at once, as things are; None: it does not say.
        evaluates: It does nothing else.
    """

    name: str
    answers: bool = True
    version: WeightVersion | None = None
    live: int = 0
    paused: bool = False
    held: int = 0
    allowed: int | None = None
    evaluates: bool = False


class WorkerStanding(Message, frozen=True, kw_only=True):
    """A worker as its launcher knows it; ``pid`` is None where it has no process of its own."""

    name: WorkerId
    pid: int | None = None
    running: bool = True


class EvaluationStatus(Message, frozen=True, kw_only=True):
    """An evaluation that goes on, in prompts: ``prompts = graded + failed + running + waiting``.

    ``reserved``: on engines of its own, so that nothing waits for it.
    """

    version: WeightVersion
    prompts: int
    graded: int
    failed: int
    running: int
    seconds: float
    reserved: bool = False


class RunStatus(Message, frozen=True, kw_only=True):
    """Where a run stands.

    Attributes:
        name, run_id: Which run; the id is empty until its record has begun.
        phase: What it does: ``starting``, ``training``, ``saving``.
        step, steps: Train steps taken, and asked for.
        seconds: For how long it has trained.
        quiet_s: Since when no call of a port began or ended; ``stall_s``: how long that may last.
        trained, served, staged: Versions: of the trainer, of the engines, and waiting to be published.
        accounts, samples: Where every admitted group, and every sample, is.
        states: Open groups by state.
        slots, running: Groups that may be lent at once, and those that are.
        wanted, ready: Groups that the next batch takes, and those that are graded and wait for it.
        grants: Groups that may be lent out now.
        trainer_idle: Whether the trainer waits for a batch.
        exhausted: Whether the prompts have come to their end; ``epoch_over``: those of the epoch.
        oldest: Age of the oldest token that waits to be trained, in weight versions; None: there is none.
        groups, waits: The oldest running groups, and the oldest open waits that are not theirs.
        open_waits: How many waits are open, those of the groups included.
        engines: What the engines say.
        workers: Those that were launched.
        incidents: Times that workers were lost, and brought back.
        scaled: The last change of size that somebody asked for, in words; empty: nobody did.
        evaluation: The one that goes on.
        throughput: Of the last step: ``samples_per_s``, ``tokens_per_s``, ``step_s``.
        failures: Masked samples, retried groups and failed evaluations so far, by class.
        checkpoint: Folder of the last one.
    """

    name: str
    run_id: str = ""
    phase: str
    step: int = 0
    steps: int
    seconds: float = 0.0
    quiet_s: float = 0.0
    stall_s: float = 0.0
    trained: WeightVersion = WeightVersion(0)
    served: WeightVersion | None = None
    staged: WeightVersion | None = None
    accounts: Accounts = Accounts()
    samples: SampleAccounts = SampleAccounts()
    states: dict[str, int] = {}
    slots: int = 0
    running: int = 0
    wanted: int = 0
    ready: int = 0
    grants: int = 0
    trainer_idle: bool = False
    exhausted: bool = False
    epoch_over: bool = False
    oldest: int | None = None
    groups: tuple[GroupStatus, ...] = ()
    waits: tuple[WaitStatus, ...] = ()
    open_waits: int = 0
    engines: tuple[EngineStanding, ...] = ()
    workers: tuple[WorkerStanding, ...] = ()
    incidents: int = 0
    scaled: str = ""
    evaluation: EvaluationStatus | None = None
    throughput: dict[str, float] = {}
    failures: dict[str, int] = {}
    checkpoint: str | None = None
