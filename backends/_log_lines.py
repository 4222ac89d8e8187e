"""What adapters log in a worker's process: a JSON line each, which whoever reads its output tells from other text."""

import logging
import sys
from typing import Any, cast

import msgspec
import structlog
from structlog.contextvars import merge_contextvars
from structlog.processors import ExceptionRenderer, TimeStamper, add_log_level
from structlog.typing import EventDict, WrappedLogger

_HEAD = ("timestamp", "level", "event")
_BEGINS = '{"timestamp":"'

LONGEST = 65_536
"""Bytes of the longest line that is written: a traceback is long."""
_LEVELS = frozenset({"warning", "error", "critical"})


def write_lines() -> None:
    """Let structlog write such lines to standard error from now on; only for a process that is ours."""
    structlog.configure(
        processors=[merge_contextvars, add_log_level, TimeStamper(fmt="iso", utc=True), ExceptionRenderer(), _rendered],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def may_begin(text: bytes) -> bool:
    """Return whether a line whose end is not there yet may be such a line."""
    return text.startswith(_BEGINS.encode())


def warning_in(line: str) -> tuple[str, str, dict[str, Any]] | None:
    """Return level, event and facts of a line that says a warning or an error; None: it is anything else."""
    if not line.startswith(_BEGINS):
        return None
    try:
        entry = msgspec.json.decode(line)
    except msgspec.MsgspecError:
        return None
    facts = cast("dict[str, Any]", entry)
    _, level, event = (facts.pop(name, None) for name in _HEAD)
    return (level, event, facts) if isinstance(level, str) and level in _LEVELS and isinstance(event, str) else None


def _rendered(_logger: WrappedLogger, _method: str, entry: EventDict) -> str:
    ordered = {**{name: entry[name] for name in _HEAD}, **entry}
    return msgspec.json.encode(ordered, enc_hook=repr).decode()
