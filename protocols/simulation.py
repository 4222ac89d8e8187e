"""What the controller is told of a simulated world: what it measured, what went wrong, what is left."""

from dataclasses import dataclass, field
from typing import Protocol

from protocols.backend import Backend
from protocols.ledger import LedgerEvent, LedgerPort
from protocols.messages import Message
from protocols.prompts import PromptSourcePort


class EngineUsage(Message, frozen=True, kw_only=True):
    """What all engines together have done.

    Attributes:
        slots: Samples that run at once.
        busy_s: Seconds that slots were taken by samples that made tokens, over all slots.
        work_s: What came of them, in seconds of samples that run alone.
        standing_s: Seconds that engines stood still, over all engines.
        engines: How many there are.
    """

    slots: int
    engines: int
    busy_s: float
    work_s: float
    standing_s: float


@dataclass(frozen=True, kw_only=True)
class FaultHit:
    """A fault that happened.

    Attributes:
        at_s: When.
        index: Of the fault in its plan.
        stage: Which part of the run made a call that it hit; ``idle`` where it hit none.
    """

    at_s: float
    index: int
    stage: str


@dataclass(kw_only=True)
class Observed:
    """What is seen of a simulated run from outside of it.

    Attributes:
        hits: Faults that happened, in order.
        trace: One line for every call of a port, every event of the record and every fault; None: not wanted.
        unstopped: Requests that still ran on an engine when it was ended for good.
        unheeded: Workers that were where they were when their place was taken away of which notice had been given.
        trained: ``lease/attempt`` of all groups of every step that the trainer applied, in order.
    """

    hits: list[FaultHit] = field(default_factory=list)
    trace: list[str] | None = None
    unstopped: list[str] = field(default_factory=list)
    unheeded: list[str] = field(default_factory=list)
    trained: list[tuple[str, ...]] = field(default_factory=list)


class SimulatedWorld(Protocol):
    """A backend whose workloads are scripted, and what stands beside it.

    Attributes:
        backend: Where the workloads of every role live, whatever adapters the job names.
        prompts: As many as a run wants.
        evaluation_prompts: A few others; nothing goes wrong with these.
        ledger: In memory.
        observed: What happened, until now.
    """

    backend: Backend
    prompts: PromptSourcePort
    evaluation_prompts: PromptSourcePort
    ledger: LedgerPort
    observed: Observed

    async def record(self) -> tuple[LedgerEvent, ...]:
        """Return what the ledger holds, past all faults."""
        ...

    def owners(self) -> frozenset[str]:
        """Return who holds payloads."""
        ...

    def usage(self) -> EngineUsage:
        """Return what the engines have done until now."""
        ...

    def work_s(self, position: int, sample: int) -> float:
        """Return how long one sample takes when it runs alone."""
        ...

    def pace(self) -> float:
        """Return the share of that speed that a sample has in a full engine."""
        ...
