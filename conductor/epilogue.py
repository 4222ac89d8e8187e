"""What became of a run that answers no more: from its record and its log. Nothing is started."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from conductor.config import RunConfig
from conductor.inspection import Inspection, inspect, read_record
from protocols.errors import UserError
from protocols.messages import Message

_TAIL = 1 << 20
"""Bytes of the log that are looked through for how the run ended."""

_ENDS: dict[str, Literal["finished", "failed", "stopped"]] = {
    "run.finished": "finished",
    "run.failed": "failed",
    "run.stopped": "stopped",
}


class Epilogue(Message, frozen=True, kw_only=True):
    """How a run ended.

    Attributes:
        ended: ``gone``: without a word: it was killed, or goes on in a process that serves no socket.
        why: The error of a run that failed, in its own words.
        steps: Train steps that the job asks for.
        record: What the record says; None: it ended with the process.
    """

    ended: Literal["finished", "failed", "stopped", "gone"]
    why: str = ""
    steps: int
    record: Inspection | None = None


def epilogue(cfg: RunConfig) -> Epilogue:
    """Say what became of the run in ``cfg.run_dir``.

    Raises:
        CorruptLedger: Its record is damaged.
    """
    try:
        record = inspect(read_record(cfg))
    except UserError:
        record = None
    ended, why = ending(Path(cfg.run_dir or "."))
    return Epilogue(ended=ended, why=why, steps=cfg.steps, record=record)


def sentences(found: Epilogue, run_dir: str) -> Iterator[str]:
    """Put it into words, and say how to go on."""
    match found.ended:
        case "finished":
            yield "the run is finished"
        case "stopped":
            yield "the run was stopped"
        case "failed":
            yield f"the run failed: {found.why}"
        case "gone":
            yield "nobody answers for the run: it was killed, or goes on in a process that serves no socket"
    if (record := found.record) is None:
        yield "its record ended with its process"
        return
    opened, trained = sum(record.groups.open.values()), record.groups.committed
    yield f"{record.steps} of {found.steps} steps are trained, with {trained} groups; {opened} groups are open"
    if record.checkpoints:
        yield f"the last checkpoint is step-{record.checkpoints[-1]}"
    if found.ended != "finished":
        yield f"go on with: conductor resume {run_dir}"


def ending(run_dir: Path) -> tuple[Literal["finished", "failed", "stopped", "gone"], str]:
    """Return what the log says last of how the run ended; a life that began after that ended without a word."""
    for line in reversed(_last_lines(run_dir / "log.jsonl")):
        entry = _entry(line)
        event = entry.get("event", "")
        if event in _ENDS:
            return _ENDS[
                event
            ], f"{entry.get('error', '')}: {entry.get('message', '')}" if event == "run.failed" else ""
        if event in {"run.started", "run.resumed"}:
            break
    return "gone", ""


def _entry(line: bytes) -> dict[str, Any]:
    try:
        entry = msgspec.json.decode(line)
    except msgspec.MsgspecError:
        return {}  # cut short
    return cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}


def _last_lines(path: Path) -> list[bytes]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            return file.read(_TAIL).splitlines()
    except OSError:
        return []
