"""What a record says about its run: the accounts, their proof, and the history of one lease. Nothing is started."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from conductor.config import RunConfig
from conductor.core.lease import State
from conductor.past import rebuild, steps_of
from conductor.result import SampleAccounts
from conductor.validation import site_of
from protocols.adapters import resolve
from protocols.errors import CorruptLedger, UserError
from protocols.grading import Grade, GradeFault
from protocols.incidents import Incident, Scaled
from protocols.ledger import (
    Admitted,
    Claimed,
    Compacted,
    Graded,
    LedgerEvent,
    Record,
    Resumed,
    RunStarted,
)
from protocols.messages import DispatchId, LeaseId, Message, WeightVersion
from protocols.prompts import content_preview
from protocols.rollouts import SampleReceipt


class GroupAccounts(Message, frozen=True, kw_only=True):
    """Where every admitted group is: filtered and dropped ones by reason, open ones by state."""

    admitted: int
    committed: int
    filtered: dict[str, int]
    dropped: dict[str, int]
    open: dict[str, int]

    @property
    def balanced(self) -> bool:
        """Whether nothing is lost and nothing counted twice."""
        settled = self.committed + sum(self.filtered.values()) + sum(self.dropped.values())
        return self.admitted == settled + sum(self.open.values())


class Inspection(Message, frozen=True, kw_only=True):
    """A run as its record has it.

    Attributes:
        run_id, name, seed: Which run.
        steps: Train steps that count.
        lives: How often it began or went on.
        events: In the record; ``lost`` had been there and are not any more.
        incidents: Failovers, of all lives.
        compacted: Whether the oldest events were summed up.
        balanced: Whether the books balance, in groups and in samples.
        checkpoints: Versions that a resume may go back to, as far as the record knows.
    """

    run_id: str
    name: str
    seed: int
    steps: int
    lives: int
    events: int
    lost: int
    incidents: int
    compacted: bool
    balanced: bool
    groups: GroupAccounts
    samples: SampleAccounts
    checkpoints: tuple[WeightVersion, ...]


class LeaseEvent(Message, frozen=True, kw_only=True):
    """One event of one lease: its number in the record, what happened, and in words what is known of it."""

    number: int
    event: str
    facts: dict[str, Any]


def read_record(cfg: RunConfig) -> Record:
    """Read the record of a run's folder, also while the run goes on.

    Raises:
        UserError: There is none.
        CorruptLedger: It is damaged.
    """
    section = cfg.ledger_section
    adapter: Any = resolve("ledger", section.kind, cfg.job_dir or "")
    if not hasattr(adapter, "read"):
        why = f"the ledger '{section.kind}' ended with its process, and nothing is left to inspect"
        raise UserError(f"{why}; set ledger.kind = 'sqlite' in the next run")
    return adapter.read(msgspec.convert(section.options, adapter.Config), site_of(cfg))


def inspect(record: Record) -> Inspection:
    """Prove the accounts of a run from its record alone.

    Raises:
        CorruptLedger: The events contradict one another, or do not begin with the start of a run.
    """
    if not record.events or not isinstance(record.events[0], RunStarted):
        raise CorruptLedger("the record does not begin with the start of a run")
    origin = record.events[0]
    table = rebuild(record.events)
    tally = table.tally
    opened = {state.value: table.count(state) for state in State if table.count(state)}
    groups = GroupAccounts(
        admitted=table.accounts.admitted,
        committed=tally.committed,
        filtered=dict(tally.filtered),
        dropped=dict(tally.dropped),
        open=opened,
    )
    samples = table.sample_accounts
    steps = steps_of(record.events)
    return Inspection(
        run_id=origin.run_id,
        name=origin.job.get("name", ""),
        seed=origin.job.get("seed", 0),
        steps=steps[-1].record.step - origin.version if steps else 0,
        lives=1 + sum(isinstance(event, Resumed) for event in record.events),
        events=len(record.events),
        lost=record.lost,
        incidents=sum(isinstance(event, Incident) and event.verdict != "noted" for event in record.events),
        compacted=any(isinstance(event, Compacted) for event in record.events),
        balanced=groups.balanced and table.accounts.balanced and samples.balanced,
        groups=groups,
        samples=samples,
        checkpoints=tuple(
            version for version, cut in table.settlements.cuts.items() if cut.complete and version != origin.version
        ),
    )


def incidents(record: Record) -> tuple[Incident | Scaled, ...]:
    """Return the failovers of all lives of a run, and the changes of its size, in the order in which they ended."""
    return tuple(event for event in record.events if isinstance(event, Incident | Scaled))


def history(record: Record, lease_id: LeaseId) -> tuple[LeaseEvent, ...]:
    """Return all that happened to one lease, in order.

    Raises:
        UserError: The record does not tell of it.
    """
    found = tuple(_events_of(record.events, lease_id))
    if not found:
        raise UserError(f"the record tells nothing of {lease_id}: it was never admitted, or its events are summed up")
    return found


def _events_of(events: Sequence[LedgerEvent], lease_id: LeaseId) -> Iterator[LeaseEvent]:
    claims: set[DispatchId] = set()
    for number, event in enumerate(events):
        if isinstance(event, Claimed) and lease_id in event.leases:
            claims.add(event.dispatch_id)
        mine = getattr(event, "lease_id", None) == lease_id or getattr(event, "dispatch_id", None) in claims
        if mine:
            yield LeaseEvent(number=number, event=_name(event), facts=dict(_facts(event)))


def _name(event: LedgerEvent) -> str:
    return str(type(event).__struct_config__.tag)


def _facts(event: LedgerEvent) -> Iterator[tuple[str, Any]]:
    match event:
        case Admitted(prompt=prompt, group_size=group_size):
            yield from {"position": prompt.position, "epoch": prompt.epoch, "group_size": group_size}.items()
            yield "prompt", content_preview(prompt.content)
        case Graded(receipt=receipt, grades=grades):
            yield "attempt", receipt.attempt
            yield "samples", [_sample(*pair) for pair in zip(receipt.samples, grades, strict=True)]
        case _:
            values = msgspec.structs.asdict(event)
            yield from ((name, values[name]) for name in _TOLD if name in values)


_TOLD = ("attempt", "reason", "dispatch_id", "version")


def _sample(sample: SampleReceipt, grade: Grade | GradeFault) -> dict[str, Any]:
    outcome = {"reward": grade.reward, "parts": grade.parts} if isinstance(grade, Grade) else {"fault": grade.kind}
    versions = [[segment.version, segment.count] for segment in sample.segments]
    made = {"tokens": sample.tokens, "versions": versions, "engine": sample.engine, "finish": sample.finish}
    return {**outcome, **made, "text": sample.preview}
