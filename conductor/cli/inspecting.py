"""``conductor inspect``: the accounts of a run and their proof, or the history of one lease."""

import json
from collections.abc import Iterator

import click
import msgspec

from conductor.config import RunConfig
from conductor.inspection import Inspection, LeaseEvent, history, inspect, read_record
from protocols.errors import CorruptLedger
from protocols.messages import LeaseId


def inspect_run(cfg: RunConfig, *, lease: str | None, as_json: bool) -> int:
    """Print what the record says; returns the exit code, 4 where the books do not balance."""
    record = read_record(cfg)
    if lease is not None:
        events = history(record, LeaseId(lease))
        _print(msgspec.to_builtins(events), map(_lease_line, events), as_json=as_json)
        return 0
    found = inspect(record)
    _print(msgspec.to_builtins(found), _lines(found), as_json=as_json)
    return 0 if found.balanced else CorruptLedger.exit_code


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


def _lease_line(event: LeaseEvent) -> str:
    facts = dict(event.facts)
    samples = facts.pop("samples", ())
    head = f"{event.number:>8}  {event.event:<11} {'  '.join(f'{name}={value}' for name, value in facts.items())}"
    rows = [f"{'':>10}sample {number}: {json.dumps(sample)}" for number, sample in enumerate(samples)]
    return "\n".join([head.rstrip(), *rows])
