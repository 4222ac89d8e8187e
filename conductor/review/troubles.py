"""What went wrong in a run: failures by class with their first messages, and what its log warned of."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from conductor.review.chronicle import Chronicle
from protocols.grading import GradeFault
from protocols.messages import LeaseId, Message

_LOG = "log.jsonl"
_UNDELIVERED = "undelivered-*.jsonl"
_QUIET = b'"level":"info"'
_TEXT_KEYS = ("error", "detail", "why", "message")
_LONGEST = 2_000
_NO_MESSAGE = "the record and the log hold no message of it"


class Trouble(Message, frozen=True, kw_only=True):
    """One class of failures or warnings: how often, and the first message."""

    kind: str
    times: int
    first: str


def failures(told: Chronicle, warnings: list[dict[str, Any]]) -> tuple[Trouble, ...]:
    """Return the failures of a run by class, as its last step counts them.

    Args:
        told: The run.
        warnings: What ``warnings_in`` gives.
    """
    steps = told.counted
    counts: Mapping[str, int] = steps[-1].stepped.failures if steps else {}
    messages = {**_retries(told, warnings), **_faults(told)}
    rows = sorted(counts.items(), key=lambda item: -item[1])
    return tuple(Trouble(kind=kind, times=times, first=messages.get(kind, _NO_MESSAGE)) for kind, times in rows)


def by_event(warnings: list[dict[str, Any]]) -> tuple[Trouble, ...]:
    """Return what the log warned of, by event, the most frequent first."""
    found: dict[str, tuple[int, str]] = {}
    for entry in warnings:
        name = str(entry.get("event", ""))
        times, first = found.get(name, (0, _text(entry)))
        found[name] = (times + 1, first)
    rows = sorted(found.items(), key=lambda item: -item[1][0])
    return tuple(Trouble(kind=name, times=times, first=first) for name, (times, first) in rows)


def undelivered(run_dir: Path) -> tuple[Trouble, ...]:
    """Return how many records each tracker did not take, and the first reason."""
    found: list[Trouble] = []
    for path in sorted(run_dir.glob(_UNDELIVERED)):
        with path.open("rb") as file:
            entries = list(_entries(iter(file)))
        if entries:
            kind = f"tracker.{path.stem.partition('-')[2]}"
            found.append(Trouble(kind=kind, times=len(entries), first=_text(entries[0])))
    return tuple(found)


def warnings_in(run_dir: Path) -> list[dict[str, Any]]:
    """Return the warnings and errors of a run's log, the oldest first; a line that was cut short is left out."""
    try:
        with (run_dir / _LOG).open("rb") as file:
            return list(_entries(line for line in file if _QUIET not in line))
    except OSError:
        return []


def _entries(lines: Iterator[bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            entry = msgspec.json.decode(line)
        except msgspec.MsgspecError:
            continue
        if isinstance(entry, dict):
            yield cast("dict[str, Any]", entry)


def _retries(told: Chronicle, warnings: list[dict[str, Any]]) -> dict[str, str]:
    """Return class -> first message of the attempts that failed: the record has the class, the log what it said."""
    first: dict[str, str] = {}
    for entry in warnings:
        attempts = told.attempts.get(LeaseId(str(entry.get("lease_id"))), ())
        for attempt in attempts:
            if entry.get("event") == "group.retried" and attempt.number == entry.get("attempt"):
                first.setdefault(attempt.fate.removeprefix("aborted: "), _text(entry))
    return first


def _faults(told: Chronicle) -> dict[str, str]:
    first: dict[str, str] = {}
    for attempt in told.all_attempts():
        for grade in attempt.grades:
            if isinstance(grade, GradeFault):
                first.setdefault(f"reward_{grade.kind}", grade.detail[:_LONGEST])
    return first


def _text(entry: dict[str, Any]) -> str:
    for key in _TEXT_KEYS:
        if key in entry:
            return str(entry[key])[:_LONGEST]
    hidden = {"timestamp", "level", "event"}
    return ", ".join(f"{key}={value}" for key, value in entry.items() if key not in hidden)[:_LONGEST]
