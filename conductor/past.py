"""What a run that goes on has behind it. Its record is read once, and let go when this is taken from it."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from conductor.core.leases import LeaseTable
from conductor.disk import on_disk
from protocols.errors import CorruptLedger, InvariantError
from protocols.incidents import Incident, Scaled
from protocols.ledger import Evaluated, LedgerEvent, LedgerPort, Resumed, RunStarted, Stepped

HISTORY = 10_000
"""Steps kept in memory, evaluations and incidents; all of them go to the record."""

_TOLD = frozenset({Stepped, Evaluated, Incident, Scaled, Resumed})
"""Events that say more than who owns what; few of a record."""


@dataclass(frozen=True, kw_only=True)
class Past:
    """What earlier lives of a run left to the next one.

    Attributes:
        origin: The first event of the record.
        events: How many there are.
        table: Who owned what at its end.
        steps, evaluations: The last of those that count, at most ``HISTORY`` each.
        incidents: The last failovers and changes of size, of all lives.
        aside: Failure domains that were set aside at its end, and for how many seconds more.
    """

    origin: RunStarted
    events: int
    table: LeaseTable
    steps: deque[Stepped]
    evaluations: deque[Evaluated]
    incidents: deque[Incident | Scaled]
    aside: dict[str, float]


async def read_past(ledger: LedgerPort, seconds: float) -> Past | None:
    """Read a record; None where there is none.

    Args:
        ledger: Holds it.
        seconds: How long it may take to rebuild the table, in a thread: a million events take some seconds.

    Raises:
        CorruptLedger: It is damaged, or it contradicts itself.
        DeadlineExceeded: It took longer.
    """
    events = await ledger.replay()
    return await on_disk("rebuilding the table", seconds, lambda: past_of(events)) if events else None


def past_of(events: Sequence[LedgerEvent]) -> Past:
    """Return what a record, at least one event, comes to.

    Raises:
        CorruptLedger: It does not begin with the start of a run, or it contradicts itself.
    """
    origin = events[0]
    if not isinstance(origin, RunStarted):
        raise CorruptLedger(f"the record begins with {type(origin).__name__}, not with the start of a run")
    told = [event for event in events if type(event) in _TOLD]
    return Past(
        origin=origin,
        events=len(events),
        table=rebuild(events),
        steps=deque(steps_of(told), HISTORY),
        evaluations=deque(evaluations_of(told), HISTORY),
        incidents=deque((event for event in told if isinstance(event, Incident | Scaled)), HISTORY),
        aside=aside_of(told),
    )


def rebuild(events: Sequence[LedgerEvent]) -> LeaseTable:
    """Return the table that a record describes.

    Raises:
        CorruptLedger: An event cannot follow those before it; it is named by number.
    """
    table = LeaseTable()
    for number, event in enumerate(events):
        try:
            table.apply(event)
        except InvariantError as exc:
            raise CorruptLedger(f"event {number} of the record ({type(event).__name__}): {exc}") from exc
    return table


def steps_of(events: Sequence[LedgerEvent]) -> list[Stepped]:
    """Return the steps that count, in order: those that a resume went back behind do not."""
    steps: list[Stepped] = []
    for event in events:
        if isinstance(event, Stepped):
            steps.append(event)
        elif isinstance(event, Resumed):
            while steps and steps[-1].record.step > event.version:
                steps.pop()
    return steps


def evaluations_of(events: Sequence[LedgerEvent]) -> list[Evaluated]:
    """Return the evaluations that count, in order: those of versions that a resume went back behind do not."""
    done: list[Evaluated] = []
    for event in events:
        if isinstance(event, Evaluated):
            done.append(event)
        elif isinstance(event, Resumed):
            done = [one for one in done if one.record.step <= event.version]
    return done


def aside_of(events: Sequence[LedgerEvent]) -> dict[str, float]:
    """Return which failure domains a run had set aside when it ended, and for how many seconds more.

    As its last incident has it, less what the run has trained since: the time between two lives does not count. When
    that was is told by its version: a record that was summed up has all incidents behind all steps.
    """
    last = next((event for event in reversed(events) if isinstance(event, Incident)), None)
    if last is None:
        return {}
    steps = steps_of(events)
    began_s = max((step.seconds for step in steps if step.record.step <= last.version), default=0.0)
    now_s = steps[-1].seconds if steps else 0.0
    passed_s = max(0.0, now_s - began_s - last.seconds)
    return {domain: seconds - passed_s for domain, seconds in last.aside.items() if seconds > passed_s}
