"""What a run that goes on has behind it. Its record is read once, a page at a time, and let go as it is read."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from conductor.core.leases import LeaseTable
from protocols.errors import CorruptLedger, InvariantError
from protocols.incidents import Incident, Scaled
from protocols.ledger import Evaluated, LedgerEvent, LedgerPort, Resumed, RunStarted, Stepped

HISTORY = 10_000
"""Steps kept in memory, evaluations and incidents; all of them go to the record."""

_TOLD = frozenset({Stepped, Evaluated, Incident, Scaled, Resumed})
"""Events that say more than who owns what; few of a record."""


Told = TypeVar("Told", Stepped, Evaluated)


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


async def read_past(ledger: LedgerPort) -> Past | None:
    """Read a record, page by page, and hold no page longer than until the next; None where there is no record.

    Raises:
        CorruptLedger: It is damaged, does not begin with the start of a run, or contradicts itself.
    """
    origin, table, events, told = None, LeaseTable(), 0, list[LedgerEvent]()
    while page := await ledger.replay(events):
        origin = origin or _origin(page[0])
        _follow(table, page, events)
        told += [event for event in page if type(event) in _TOLD]
        events += len(page)
    if origin is None:
        return None
    return Past(
        origin=origin,
        events=events,
        table=table,
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
    _follow(table, events, 0)
    return table


def _origin(event: LedgerEvent) -> RunStarted:
    if not isinstance(event, RunStarted):
        raise CorruptLedger(f"the record begins with {type(event).__name__}, not with the start of a run")
    return event


def _follow(table: LeaseTable, events: Sequence[LedgerEvent], first: int) -> None:
    """Make the transitions of events, of which the first has the number ``first``."""
    for number, event in enumerate(events, first):
        try:
            table.apply(event)
        except InvariantError as exc:
            raise CorruptLedger(f"event {number} of the record ({type(event).__name__}): {exc}") from exc


def steps_of(events: Sequence[LedgerEvent]) -> list[Stepped]:
    """Return the steps that count, in order: those that a resume went back behind do not."""
    return _that_count(events, Stepped)


def evaluations_of(events: Sequence[LedgerEvent]) -> list[Evaluated]:
    """Return the evaluations that count, in order: those of versions that a resume went back behind do not."""
    return _that_count(events, Evaluated)


def _that_count(events: Sequence[LedgerEvent], kind: type[Told]) -> list[Told]:
    counted: list[Told] = []
    for event in events:
        if isinstance(event, kind):
            counted.append(event)
        elif isinstance(event, Resumed):
            counted = [one for one in counted if one.record.step <= event.version]
    return counted


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
