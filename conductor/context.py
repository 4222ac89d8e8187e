"""What the stages of one run share: the table and its record, the ports, the counters of the step."""

from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Literal, TypeVarTuple, cast

import anyio
from anyio.abc import TaskGroup
from msgspec import structs
from structlog.typing import FilteringBoundLogger

from conductor.config import RunConfig
from conductor.core.admission import Admission
from conductor.core.epochs import EpochGate
from conductor.core.evaluation import Evaluation, due
from conductor.core.leases import LeaseTable
from conductor.core.patience import Patience
from conductor.core.planning.wishes import POLICY
from conductor.core.publication import Publication
from conductor.core.staleness import Sampler
from conductor.core.waits import Waits
from conductor.failures import Failures
from conductor.fleet.rewinding import Rewinding
from conductor.observe.lag import LagMonitor
from conductor.observe.metrics import StepWindow
from conductor.observe.observer import Observer
from conductor.past import HISTORY
from conductor.ports import Ports
from protocols.aio import Doorbell, owned
from protocols.fleet import Restarts
from protocols.incidents import Incident, Scaled
from protocols.inference import InferenceControllerPort
from protocols.ledger import Evaluated, LedgerEvent, RunStarted, Stepped
from protocols.messages import LeaseId, WeightVersion, WorkerId
from protocols.prompts import Prompt

Args = TypeVarTuple("Args")
Streams = TypeVarTuple("Streams")

INITIAL = WeightVersion(0)


@dataclass(kw_only=True)
class RunContext:
    """One run. Its state is read and changed without an ``await`` in between.

    Attributes:
        waits: The calls of the ports that are open.
        phase: What the run does, for people.
        changed: Rings after every transition, every publish and every change of the stages' own state.
        rewinding: Decides whether it goes back to a checkpoint when all that was trained is lost.
        origin: The first event of the record.
        recorded: Events in the record.
        trained: The trainer's version.
        closed: The version whose step is closed and recorded.
        saved: The version of the last checkpoint; None: there is none.
        checkpoint: Its folder.
        saving: The version whose checkpoint is being written; None: none is.
        evaluation_prompts: What every evaluation is about.
        evaluation: The one that goes on; None: none does.
        evaluated: The last version evaluated, or begun to be; None: none was.
        owed: Whether something of an evaluation may still run, since nobody confirmed that it ended.
        evaluations: What the last ones came to, those before a resume included.
        incidents: Failovers and changes of size, of all lives of the run.
        unrecorded: Those that ended before this life of the run was in the record.
        checkpoint_wanted: Whether somebody asked for one after the current step.
        steps: The last steps of the run, those before a resume included.
        seconds_before: How long earlier lives of the run trained; ``began``: since when this one does.
        trainer_turn: Whoever holds it has the trainer to itself.
        engines_turn: Whoever holds it decides which weights the engines load.
        publishing: Around the publish that goes on; None: none does.
        engines_lost: Those that were gone at the last publish.
        rank_replaced: Set when a process of the trainer is another one than when weights were staged last.
        publish_s: Seconds that the last publish took.
        publishes: When those since the last step began and ended, by the run's clock.
        checkpoint_s: Seconds that training stood still for the last checkpoint.
        idle: Whether the trainer waits for a batch.
        ending: Groups that are cut short while they are generated, and what becomes of each.
        readmitted: Leases that admit sends out again, in order.
        patiences: Of every cause that was called patiently, by its name.
        ready: Groups graded since batch looked for those that are too old.
        record_failed: Whether the ledger failed to write: nothing is written after a gap.
        rollouts_done: Whether every rollout and grade that will come has come.
    """

    cfg: RunConfig
    ports: Ports
    log: FilteringBoundLogger
    observer: Observer
    failures: Failures
    admission: Admission
    gate: EpochGate
    publication: Publication
    sampler: Sampler
    waits: Waits
    phase: str = "starting"
    table: LeaseTable = field(default_factory=LeaseTable)
    changed: Doorbell = field(default_factory=Doorbell)
    window: StepWindow = field(default_factory=StepWindow)
    lag: LagMonitor = field(default_factory=LagMonitor)
    rewinding: Rewinding = field(default_factory=lambda: Rewinding(POLICY, Restarts()))
    origin: RunStarted | None = None
    recorded: int = 0
    trained: WeightVersion = INITIAL
    closed: WeightVersion = INITIAL
    saved: WeightVersion | None = None
    checkpoint: str | None = None
    saving: WeightVersion | None = None
    checkpoint_wanted: bool = False
    evaluation_prompts: tuple[Prompt, ...] = ()
    evaluation: Evaluation | None = None
    evaluated: WeightVersion | None = None
    owed: bool = False
    evaluations: deque[Evaluated] = field(default_factory=lambda: deque(maxlen=HISTORY))
    incidents: deque[Incident | Scaled] = field(default_factory=lambda: deque(maxlen=HISTORY))
    unrecorded: list[Incident | Scaled] | None = field(default_factory=list[Incident | Scaled])
    steps: deque[Stepped] = field(default_factory=lambda: deque(maxlen=HISTORY))
    seconds_before: float = 0.0
    began: float | None = None
    trainer_turn: anyio.Lock = field(default_factory=lambda: anyio.Lock(fast_acquire=True))
    engines_turn: anyio.Lock = field(default_factory=lambda: anyio.Lock(fast_acquire=True))
    publishing: anyio.CancelScope | None = None
    engines_lost: frozenset[WorkerId] = frozenset()
    rank_replaced: anyio.Event = field(default_factory=anyio.Event)
    publish_s: float = 0.0
    publishes: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    checkpoint_s: float = 0.0
    idle: bool = False
    ending: dict[LeaseId, Literal["restart", "surplus"]] = field(default_factory=dict)
    readmitted: deque[LeaseId] = field(default_factory=deque)
    ready: list[LeaseId] = field(default_factory=list)
    rollouts_done: bool = False
    patiences: dict[str, Patience] = field(default_factory=dict)
    record_failed: bool = False

    @property
    def first_version(self) -> WeightVersion:
        """The trainer's version before the first step of the run."""
        return INITIAL if self.origin is None else self.origin.version

    @property
    def run_id(self) -> str:
        """Names the record that the run's checkpoints belong to."""
        return "" if self.origin is None else self.origin.run_id

    @property
    def seconds(self) -> float:
        """For how long the run has trained, without the time between two lives of it."""
        return self.seconds_before + (0.0 if self.began is None else anyio.current_time() - self.began)

    @property
    def reserved(self) -> InferenceControllerPort | None:
        """Engines that only evaluate; None: there are none."""
        return None if self.ports.evaluation is None else self.ports.evaluation.inference

    def evaluation_due(self, version: WeightVersion) -> bool:
        """Return whether ``version`` is to be evaluated as soon as the engines serve it."""
        return due(self.cfg.evaluate_every, first=self.first_version, evaluated=self.evaluated, version=version)

    def patience(self, what: str) -> Patience:
        """Return the budget of a cause that may fail."""
        if what not in self.patiences:
            self.patiences[what] = Patience(what=what, allowed=self.cfg.retries)
        return self.patiences[what]

    def enter(self, phase: str) -> None:
        """Begin something, and tell whoever watches."""
        self.phase = phase
        self.observer.phase(phase)

    async def record(self, *events: LedgerEvent) -> None:
        """Make transitions and write them down.

        The table changes at once, so nothing can come between a check and its transition; the return
        means that the record is as durable as the ledger promises. Act on what could be lost (an
        admission, a claim, an intent to abort) only after it.
        """
        for event in events:
            self.table.apply(event)
        self.changed.ring()
        if self.record_failed or not events:
            return
        self.recorded += len(events)
        await self._write(self.ports.ledger.append(events))

    async def record_incident(self, incident: Incident | Scaled) -> None:
        """Write a failover or a change of size down, as soon as there is a record of this life of the run."""
        if isinstance(incident, Incident):
            if incident.role == POLICY and incident.verdict == "restored":
                self.rank_replaced.set()
            incident = structs.replace(incident, aside=self.ports.quarantine.left(anyio.current_time()))
        if self.unrecorded is not None:
            self.unrecorded.append(incident)
            return
        self.incidents.append(incident)
        await self.record(incident)

    async def record_beginning(self, *events: LedgerEvent) -> None:
        """Write down that the run begins, or goes on, and what happened on the way there, when no version was known."""
        happened = [structs.replace(one, version=self.trained) for one in self.unrecorded or ()]
        self.unrecorded = None
        self.incidents.extend(happened)
        await self.record(*events, *happened)

    async def compact_record(self) -> None:
        """Put a summary in the place of the record."""
        if self.origin is None or self.record_failed:
            return
        events = (self.origin, *self.steps, *self.evaluations, *self.incidents, self.table.compacted())
        self.recorded = len(events)
        await self._write(self.ports.ledger.compact(events))

    async def _write(self, written: Awaitable[None]) -> None:
        try:
            await written
        except Exception:
            self.record_failed = True
            raise

    def start(self, group: TaskGroup, name: str, body: Callable[[*Args], Awaitable[None]], *args: *Args) -> None:
        """Start a task whose failure is remembered in the order of failing, and whose end is never silent."""
        group.start_soon(self._run, name, body, *args, name=name)

    def start_stage(
        self,
        group: TaskGroup,
        name: str,
        body: Callable[["RunContext", *Streams], Awaitable[None]],
        *streams: *Streams,
    ) -> None:
        """Start a stage, which closes its ends of the streams when it ends.

        Its failure is remembered before they close: what a closed stream breaks next door came second.
        """

        async def run() -> None:
            with ExitStack() as ends:
                for stream in streams:
                    ends.enter_context(cast("AbstractContextManager[object]", stream))
                await self._run(f"stage {name}", body, self, *streams)

        group.start_soon(run, name=f"stage {name}")

    async def _run(self, name: str, body: Callable[[*Args], Awaitable[None]], *args: *Args) -> None:
        try:
            await owned(name, body, *args)
        except Exception as exc:
            self.failures.remember(name, exc)
            raise
