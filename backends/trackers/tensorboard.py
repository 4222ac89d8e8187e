"""Metrics as event files that TensorBoard shows: ``tensorboard --logdir RUN_DIR/tensorboard``. Needs no torch."""

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from backends._extras import find_missing
from backends.trackers._outlet import OutletTracker, open_outlet
from protocols.adapters import Host
from protocols.errors import Problem
from protocols.messages import Message
from protocols.sections import Site
from protocols.tracking import StepRecord

_FOLDER = "tensorboard"


class Config(Message, frozen=True, kw_only=True):
    """``[[trackers]] kind = "tensorboard"``.

    Attributes:
        folder: Where the event files go; a relative path starts from the run's folder.
    """

    folder: str = _FOLDER


class EventFiles:
    """The outlet."""

    def __init__(self, folder: Path) -> None:
        self._events: Any = import_module("tensorboard.compat.proto.event_pb2")
        self._summaries: Any = import_module("tensorboard.compat.proto.summary_pb2")
        writing: Any = import_module("tensorboard.summary.writer.event_file_writer")
        self._writer = writing.EventFileWriter(str(folder))

    def write(self, record: StepRecord) -> None:
        """Write one event with a value for each metric, and bring it to the disk."""
        value = self._summaries.Summary.Value
        values = [value(tag=name, simple_value=number) for name, number in record.metrics.items()]
        summary = self._summaries.Summary(value=values)
        self._writer.add_event(self._events.Event(wall_time=time.time(), step=record.step, summary=summary))
        self._writer.flush()

    def rewind(self, step: int) -> None:
        """Begin a session, which lets TensorBoard forget what comes after ``step``."""
        log = self._events.SessionLog(status=self._events.SessionLog.START)
        self._writer.add_event(self._events.Event(wall_time=time.time(), step=step + 1, session_log=log))

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


def check(cfg: Config, site: Site) -> Sequence[Problem]:
    """Say what is not installed."""
    del cfg, site
    return find_missing("tensorboard", field="trackers.kind", kind="tensorboard", extra="tensorboard")


@asynccontextmanager
async def open(cfg: Config, host: Host) -> AsyncGenerator[OutletTracker]:  # noqa: A001 - the adapters' common name
    """Open the tracker; without a run folder it writes below the working folder."""
    folder = Path(host.site.run_dir or ".") / cfg.folder
    async with open_outlet("tensorboard", partial(EventFiles, folder), host.site.run_dir) as tracker:
        yield tracker
