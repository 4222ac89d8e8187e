"""The failure tree. The type of an error says what to do about it.

::

    ConductorError
     +- Transient             retry elsewhere, within a budget that progress refills
     |   +- WorkerLost            an engine or another worker is gone
     |   +- PayloadLost           bulk data is gone or damaged: its work is to be done again
     |   +- PeersLost             others that worked on the same are gone
     |   +- SnapshotLost          what was copied for a checkpoint is gone: a later one can be copied
     |   +- EngineBusy            an engine's queue is full
     |   +- EngineStale           an engine holds no confirmed weights
     |   +- DeadlineExceeded      a named wait reached its deadline
     +- DataFault             this prompt or reward is bad: drop it, count it
     |   +- PromptTooLong
     |   +- BadPrompt
     +- Aborted               the work was aborted by us
     +- Stopped               somebody asked the run to stop; exit 130
     +- UserError             refuse at the boundary; exit 2
     |   +- ConfigError           every problem of a job at once
     +- PortFailed            a port failed and nothing can make up for it; exit 3
     |   +- Infeasible            asked for more than there is
     |   +- Stalled               nothing can make progress
     |   +- BudgetExhausted       failed more often than allowed
     |   +- QueueClosed           nothing more is taken from there
     |   +- StateLost             what was trained is gone, but for what a checkpoint holds
     +- InvariantError        we are wrong; exit 4
     |   +- ForeignCancellation   a task was cancelled that no scope had cancelled
     +- CorruptLedger         the record is wrong; exit 4

Facts are attributes. An error crosses a port by class name and attributes (``protocols.wire``), so
constructors keep every fact as an attribute and hold nothing that a message could not hold.
"""

from collections.abc import Sequence
from typing import ClassVar

from protocols.messages import Message


class ConductorError(Exception):
    """Base of all errors that cross a port."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Transient(ConductorError):
    """It may work elsewhere or later."""

    exit_code = 3


class WorkerLost(Transient):
    """A worker, and with it whatever it ran, is gone. ``preempted``: its place was taken away."""

    def __init__(self, *, worker: str, cause: str, preempted: bool = False) -> None:
        super().__init__(f"worker {worker} is lost: {cause}")
        self.worker = worker
        self.cause = cause
        self.preempted = preempted


class PayloadLost(Transient):
    """Bulk data of one owner is not there, or is not what was put. ``others``: these were found lost with it."""

    def __init__(self, *, owner: str, cause: str, others: tuple[str, ...] = ()) -> None:
        super().__init__(f"the payload of {owner} is lost: {cause}")
        self.owner = owner
        self.cause = cause
        self.others = others


class PeersLost(Transient):
    """Others that worked on the same went, or did not come; what ended them is the cause."""


class SnapshotLost(Transient):
    """What was copied for a checkpoint went with the process that held it; the trainer is there, and can copy again."""


class EngineBusy(Transient):
    """The engine refused new work because its queue is full."""

    def __init__(self, *, engine: str, waiting: int) -> None:
        super().__init__(f"engine {engine} is full: {waiting} requests wait")
        self.engine = engine
        self.waiting = waiting


class EngineStale(Transient):
    """The engine has not confirmed the weights that it would have to serve."""

    def __init__(self, *, engine: str) -> None:
        super().__init__(f"engine {engine} has confirmed no weights")
        self.engine = engine


class DeadlineExceeded(Transient):
    """A named wait reached its deadline."""

    def __init__(self, *, what: str, deadline_s: float) -> None:
        super().__init__(f"{what} did not end within {deadline_s:g} s")
        self.what = what
        self.deadline_s = deadline_s


class DataFault(ConductorError):
    """This prompt, reward or environment is bad; others may be good."""

    reason: ClassVar[str] = "data_fault"


class PromptTooLong(DataFault):
    """The prompt leaves no room for a single token."""

    reason = "prompt_too_long"

    def __init__(self, *, tokens: int, context: int) -> None:
        super().__init__(f"the prompt has {tokens} tokens, the context holds {context} with the completion")
        self.tokens = tokens
        self.context = context


class BadPrompt(DataFault):
    """The prompt cannot be turned into tokens."""

    reason = "bad_prompt"


class Aborted(ConductorError):
    """The work was aborted on request; its results are nobody's."""

    exit_code = 3

    def __init__(self, *, prefix: str) -> None:
        super().__init__(f"{prefix} was aborted")
        self.prefix = prefix


class Stopped(ConductorError):
    """Somebody asked the run to stop. What it had trained is saved, and it can be resumed."""

    exit_code = 130


class UserError(ConductorError):
    """The job, a request or the user's data is wrong."""

    exit_code = 2


class Problem(Message, frozen=True, kw_only=True):
    """One thing that is wrong with a job.

    Attributes:
        field: Dotted path in the job, ``train.lr``.
        value: What stands there, as text; None where the point is that nothing does.
        why: What is wrong with it.
        mend: What to do.
    """

    field: str
    value: str | None
    why: str
    mend: str

    def __str__(self) -> str:
        shown = "" if self.value is None else f" = {self.value}"
        return f"{self.field}{shown}: {self.why}; {self.mend}"


class ConfigError(UserError):
    """A job that cannot start, with all of its problems."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__("\n".join([f"the job has {count}:", *(f"  {problem}" for problem in problems)]))
        self.problems = tuple(problems)


class PortFailed(ConductorError):
    """A port failed for good."""

    exit_code = 3


class Infeasible(PortFailed):
    """More was asked for than there is."""

    def __init__(self, *, what: str, asked: float, available: float) -> None:
        super().__init__(f"{what}: {asked:g} asked for, {available:g} available")
        self.what = what
        self.asked = asked
        self.available = available


class Stalled(PortFailed):
    """Nothing can make progress."""


class BudgetExhausted(PortFailed):
    """Something failed more often than the job allows.

    Args:
        what: What failed.
        spent: How often.
        allowed: How often it may.
        field: The setting that allows it.
        last: The last failure, as text.
    """

    def __init__(self, *, what: str, spent: int, allowed: int, field: str, last: str) -> None:
        super().__init__(f"{what}: {spent} failures, {allowed} allowed by {field}; the last one: {last}")
        self.what = what
        self.spent = spent
        self.allowed = allowed
        self.field = field
        self.last = last


class QueueClosed(PortFailed):
    """Somebody closed a queue between roles; nothing more comes into it."""

    def __init__(self, *, queue: str) -> None:
        super().__init__(f"the queue {queue} is closed")
        self.queue = queue


class StateLost(PortFailed):
    """What was trained is gone with those that held it; a checkpoint holds what there still is of it.

    Args:
        workers: Who held it.
        cause: What became of them.
        preempted: Whether their places were taken away.
    """

    def __init__(self, *, workers: tuple[str, ...], cause: str, preempted: bool = False) -> None:
        super().__init__(f"{', '.join(workers)} held what was trained: {cause}")
        self.workers = workers
        self.cause = cause
        self.preempted = preempted


class InvariantError(ConductorError):
    """The controller or an adapter broke a rule that it set itself."""

    exit_code = 4


class ForeignCancellation(InvariantError):
    """A task ended cancelled although no scope around it had been cancelled.

    Left alone it would cancel the task's siblings and let the group end as if all had finished.
    """

    def __init__(self, *, task: str) -> None:
        super().__init__(f"{task} was cancelled, and not by its scope")
        self.task = task


class CorruptLedger(ConductorError):
    """The record of ownership cannot be trusted."""

    exit_code = 4
