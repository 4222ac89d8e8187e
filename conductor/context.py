"""What the stages of one run share: the table and its record, the ports, the counters of the step."""

from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import TypeVarTuple, cast

from anyio.abc import TaskGroup
from structlog.typing import FilteringBoundLogger

from conductor.config import RunConfig
from conductor.core.admission import Admission
from conductor.core.epochs import EpochGate
from conductor.core.leases import LeaseTable
from conductor.core.publication import Publication
from conductor.failures import Failures
from conductor.observe.lag import LagMonitor
from conductor.observe.metrics import StepWindow
from conductor.observe.observer import Observer
from conductor.ports import Ports
from protocols.aio import Doorbell, owned
from protocols.ledger import LedgerEvent
from protocols.messages import LeaseId, WeightVersion
from protocols.tracking import StepRecord

Args = TypeVarTuple("Args")
Streams = TypeVarTuple("Streams")

INITIAL = WeightVersion(0)

HISTORY = 10_000
"""Step records kept in memory; all of them go to the trackers."""


@dataclass(kw_only=True)
class RunContext:
    """One run. Its state is read and changed without an ``await`` in between.

    Attributes:
        changed: Rings after every transition, every publish and every change of the stages' own state.
        trained: The trainer's version.
        first_version: The trainer's version at the start of the run.
        publish_s: Seconds that the last publish took.
        idle: Whether the trainer waits for a batch.
        readmitted: Leases that admit sends out again, in order.
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
    table: LeaseTable = field(default_factory=LeaseTable)
    changed: Doorbell = field(default_factory=Doorbell)
    window: StepWindow = field(default_factory=StepWindow)
    lag: LagMonitor = field(default_factory=LagMonitor)
    history: deque[StepRecord] = field(default_factory=lambda: deque(maxlen=HISTORY))
    trained: WeightVersion = INITIAL
    first_version: WeightVersion = INITIAL
    publish_s: float = 0.0
    idle: bool = False
    readmitted: deque[LeaseId] = field(default_factory=deque)
    rollouts_done: bool = False
    record_failed: bool = False

    async def record(self, *events: LedgerEvent) -> None:
        """Make transitions and write them down.

        The table changes at once, so nothing can come between a check and its transition; the return
        means that the record is as durable as the ledger promises. Act on what could be lost (an
        admission, a claim, an intent to abort) only after it.
        """
        for event in events:
            self.table.apply(event)
        self.changed.ring()
        if self.record_failed:
            return
        try:
            await self.ports.ledger.append(events)
        except Exception:
            self.record_failed = True
            raise

    def start(self, group: TaskGroup, name: str, body: Callable[[*Args], Awaitable[None]], *args: *Args) -> None:
        """Start a task whose failure is remembered in the order of failing, and whose end is never silent."""
        group.start_soon(self._run, name, lambda: body(*args), name=name)

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
                await self._run(f"stage {name}", lambda: body(self, *streams))

        group.start_soon(run, name=f"stage {name}")

    async def _run(self, name: str, body: Callable[[], Awaitable[None]]) -> None:
        with self.failures.watch(name):
            await owned(name, body)
