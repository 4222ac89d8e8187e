"""``conductor inspect``: the accounts of a run and their proof, or what is known of a lease, a step, a checkpoint."""

import json
from collections.abc import Iterator, Sequence
from typing import Literal

import click
import msgspec

from conductor.cli.lineage import sample_lines, step_lines
from conductor.config import RunConfig
from conductor.inspection import Inspection, LeaseEvent, history, incidents, inspect, read_record
from conductor.review.chronicle import chronicle
from conductor.review.lineage import sample_lineage, step_lineage
from conductor.shelf import CheckpointStanding, Shelf, shelf
from protocols.errors import CorruptLedger, UserError
from protocols.incidents import Incident, Scaled
from protocols.ledger import Record
from protocols.messages import LeaseId

About = Literal["lease", "sample", "step", "incidents", "checkpoints"]


def inspect_run(cfg: RunConfig, about: dict[About, str], *, as_json: bool) -> int:
    """Print what the record says; returns the exit code, 4 where the books do not balance.

    Args:
        cfg: The job that the run's folder keeps.
        about: The one thing to tell of instead of the accounts, and which one; empty: the accounts.
        as_json: Print JSON.

    Raises:
        UserError: The record does not tell of it, or more than one thing is asked for.
    """
    if len(about) > 1:
        raise UserError(f"one thing at a time: {' or '.join(f'--{what}' for what in sorted(about))}")
    record = read_record(cfg)
    for what, which in about.items():
        values, lines = _told(record, what, which, cfg)
        _print(values, lines, as_json=as_json)
        return 0
    found = inspect(record)
    _print(msgspec.to_builtins(found), _lines(found), as_json=as_json)
    return 0 if found.balanced else CorruptLedger.exit_code


def _told(record: Record, what: About, which: str, cfg: RunConfig) -> tuple[object, Iterator[str]]:
    match what:
        case "incidents":
            lost = incidents(record)
            return msgspec.to_builtins(lost), _incident_lines(lost)
        case "checkpoints":
            found = shelf(record, cfg)
            return msgspec.to_builtins(found), _checkpoint_lines(found)
        case "lease":
            events = history(record, LeaseId(which))
            return msgspec.to_builtins(events), map(_lease_line, events)
        case "sample":
            sample = sample_lineage(chronicle(record.events), which, cfg.algorithm)
            return msgspec.to_builtins(sample), sample_lines(sample)
        case "step":
            step = step_lineage(chronicle(record.events), int(which), cfg.algorithm)
            return msgspec.to_builtins(step), step_lines(step)


def _print(values: object, lines: Iterator[str], *, as_json: bool) -> None:
    click.echo(json.dumps(values) if as_json else "\n".join(lines))


def _lines(found: Inspection) -> Iterator[str]:
    groups, samples = found.groups, found.samples
    lives = "1 life" if found.lives == 1 else f"{found.lives} lives"
    verdict = "balanced" if found.balanced else "NOT BALANCED"
    yield f"run {found.name}, id {found.run_id}, seed {found.seed}"
    yield f"{found.steps} steps in {lives}; {found.events} events{', summed up' if found.compacted else ''}"
    if found.lost:
        yield f"{found.lost} events had been written and are lost"
    if found.incidents:
        times = "once" if found.incidents == 1 else f"{found.incidents} times"
        yield f"workers were lost {times}: --incidents tells of it"
    yield (
        f"groups   {groups.admitted} admitted = {groups.committed} committed + {sum(groups.filtered.values())} filtered"
        f" + {sum(groups.dropped.values())} dropped + {sum(groups.open.values())} open"
    )
    yield (
        f"samples  {samples.admitted} admitted = {samples.trained} trained + {samples.masked} masked"
        f" + {samples.filtered} filtered + {samples.dropped} dropped + {samples.open} open"
    )
    for name, counts in (("filtered", groups.filtered), ("dropped", groups.dropped), ("open", groups.open)):
        if counts:
            yield f"{name}: {', '.join(f'{count} {what}' for what, count in sorted(counts.items()))}"
    if found.checkpoints:
        yield f"checkpoints: {', '.join(f'step-{version}' for version in found.checkpoints)}"
    yield f"the books are {verdict}"


def _incident_lines(found: Sequence[Incident | Scaled]) -> Iterator[str]:
    if not found:
        yield "no worker was lost"
        return
    rows = [
        (f"v{one.version}", ", ".join(one.workers), *_course(one), one.verdict, f"{one.seconds:.1f} s") for one in found
    ]
    head = ("at", "workers", "cause", "level", "attempts", "verdict", "took")
    for line, one in zip(_table(head, *rows), (None, *found), strict=True):
        yield line
        if one is not None:
            yield f"    {(str(one) if isinstance(one, Scaled) else one.detail).splitlines()[0]}"


def _table(*rows: tuple[str, ...]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _checkpoint_lines(found: Shelf) -> Iterator[str]:
    if found.checkpoints:
        rows = [_checkpoint_row(one) for one in found.checkpoints]
        yield from _table(("checkpoint", "state", found.metric, "kept as"), *rows)
    else:
        yield "the record knows no checkpoint"
    for name in found.unknown:
        yield f"{name} is not in the record: nothing goes back to it, and nothing removes it"


def _checkpoint_row(one: CheckpointStanding) -> tuple[str, str, str, str]:
    return one.name, one.state, "-" if one.worth is None else f"{one.worth:.4f}", ", ".join(one.kept) or "-"


def _course(one: Incident | Scaled) -> tuple[str, str, str]:
    """Return cause, level and attempts."""
    return ("request", "role", "1") if isinstance(one, Scaled) else (one.cause, one.level, str(one.attempts))


def _lease_line(event: LeaseEvent) -> str:
    facts = dict(event.facts)
    samples = facts.pop("samples", ())
    head = f"{event.number:>8}  {event.event:<11} {'  '.join(f'{name}={value}' for name, value in facts.items())}"
    rows = [f"{'':>10}sample {number}: {json.dumps(sample)}" for number, sample in enumerate(samples)]
    return "\n".join([head.rstrip(), *rows])
