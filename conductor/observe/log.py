"""The log of one run: JSON lines for machines in its folder, plain lines for people on stderr.

Structlog is not configured globally: a caller's own configuration stays as it is, and two runs in one
process have two logs. A program that is there for one run only has its adapters log there as well
(``configure_adapters``).
"""

import logging
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, TextIO, cast

import msgspec
import structlog
from structlog.contextvars import merge_contextvars
from structlog.processors import ExceptionRenderer, TimeStamper, add_log_level
from structlog.typing import EventDict, FilteringBoundLogger, WrappedLogger

_SILENT = logging.CRITICAL
_FOR_THE_FILE = frozenset({"step.trained", "run.failed", "run.finished"})
"""Told to people by others: a step by its line in the progress, the end by whoever called the run."""

_HEAD = ("timestamp", "level", "event")
_WHOSE = ("kind", "tracker", "engine", "worker")
_FILE = "log.jsonl"
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT


class Sink(Protocol):
    """Takes log lines. It never raises: a full disk or a closed pipe costs lines, not the run."""

    def write(self, entry: EventDict) -> None:
        """Write one line."""
        ...


@contextmanager
def open_log(run_dir: str | None, *, to_stderr: bool) -> Generator[FilteringBoundLogger]:
    """Open the log of a run, ``run_dir/log.jsonl``; without a folder and stderr it is silent.

    Where stderr is a terminal it carries warnings and errors only, for the progress stands there.
    """
    descriptor = _open_file(run_dir)
    sinks: list[Sink] = []
    if descriptor is not None:
        sinks.append(JsonLines(descriptor))
    if to_stderr:
        sinks.append(_people(sys.stderr))
    try:
        yield _logger(sinks)
    finally:
        if descriptor is not None:
            os.close(descriptor)


def configure_adapters(run_dir: str | None, *, to_stderr: bool) -> None:
    """Configure structlog for this process: what adapters log goes where the log of its run goes.

    Args:
        run_dir: The folder of the run. Nothing is written before it is there.
        to_stderr: As in ``open_log``.
    """
    sinks: list[Sink] = [] if run_dir is None else [_AppendedLines(Path(run_dir))]
    if to_stderr:
        sinks.append(_people(sys.stderr))
    structlog.configure(
        processors=_PROCESSORS,
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO if sinks else _SILENT),
        logger_factory=lambda *_: _Fan(sinks),
    )


class _AppendedLines:
    """Opens the file for each line: adapters say little, and the first of it perhaps before there is a folder."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir

    def write(self, entry: EventDict) -> None:
        """Write one line."""
        with suppress(OSError):
            descriptor = os.open(self._run_dir / _FILE, _APPEND, 0o644)
            try:
                JsonLines(descriptor).write(entry)
            finally:
                os.close(descriptor)


class JsonLines:
    """Writes one JSON object a line, each with a single system call."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._torn = False

    def write(self, entry: EventDict) -> None:
        """Write one line; after a line that the disk cut short, begin on a new one."""
        line = (b"\n" if self._torn else b"") + msgspec.json.encode(_in_order(entry), enc_hook=repr) + b"\n"
        with suppress(OSError):
            self._torn = os.write(self._descriptor, line) < len(line)


class PlainLines:
    """Writes lines for people.

    A warning that comes again (the same event of the same one of ``_WHOSE``) is left to the file: a reward that
    fails on every sample would bury everything else. So is what ``_FOR_THE_FILE`` names.
    """

    def __init__(self, stream: TextIO, *, least: str) -> None:
        self._stream = stream
        self._least = logging.getLevelNamesMapping()[least.upper()]
        self._warned: set[tuple[str, ...]] = set()

    def write(self, entry: EventDict) -> None:
        """Write one line, and under it what takes several."""
        level = str(entry["level"])
        if logging.getLevelNamesMapping()[level.upper()] < self._least or entry["event"] in _FOR_THE_FILE:
            return
        if level == "warning":
            known = tuple(str(entry.get(key)) for key in ("event", *_WHOSE))
            if known in self._warned:
                return
            self._warned.add(known)
            entry = {**entry, "more": "in the log only"}
        with suppress(OSError, ValueError):  # ValueError: the stream was closed
            self._stream.write(_plain(entry))
            self._stream.flush()


def _open_file(run_dir: str | None) -> int | None:
    if run_dir is None:
        return None
    with suppress(OSError):
        Path(run_dir).mkdir(parents=True, exist_ok=True)
        return os.open(Path(run_dir) / _FILE, _APPEND, 0o644)
    return None


class _Fan:
    """What structlog wraps: every level is a method that hands the entry to the sinks."""

    def __init__(self, sinks: list[Sink]) -> None:
        self._sinks = sinks

    def msg(self, **entry: Any) -> None:
        for sink in self._sinks:
            sink.write(entry)

    debug = info = warning = error = critical = msg


def _hand_over(_logger: WrappedLogger, _method: str, entry: EventDict) -> tuple[tuple[()], EventDict]:
    return (), entry


def _people(stream: TextIO) -> Sink:
    return PlainLines(stream, least="warning" if stream.isatty() else "info")


_PROCESSORS = (merge_contextvars, add_log_level, TimeStamper(fmt="iso", utc=True), ExceptionRenderer(), _hand_over)


def _logger(sinks: list[Sink]) -> FilteringBoundLogger:
    wrapper = structlog.make_filtering_bound_logger(logging.INFO if sinks else _SILENT)
    logger = structlog.wrap_logger(_Fan(sinks), processors=_PROCESSORS, wrapper_class=wrapper)
    return cast("FilteringBoundLogger", logger.bind())


def _in_order(entry: EventDict) -> dict[str, Any]:
    return {**{key: entry[key] for key in _HEAD}, **entry}


def _plain(entry: EventDict) -> str:
    facts: list[str] = []
    blocks: list[str] = []
    for key, value in entry.items():
        if key in _HEAD:
            continue
        text = f"{value:.4g}" if isinstance(value, float) else str(value)
        if "\n" in text:
            blocks.append(text.rstrip())
        else:
            facts.append(f"{key}={text}")
    head = " ".join([str(entry["timestamp"])[11:19], str(entry["level"]), str(entry["event"]), *facts])
    return "\n".join([head, *blocks]) + "\n"
