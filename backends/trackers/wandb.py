"""Metrics in Weights & Biases: on its server, or offline in a folder that ``wandb sync`` uploads later."""

import threading
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from backends._extras import find_missing
from backends.trackers._outlet import OutletTracker, open_outlet
from protocols.adapters import Host
from protocols.errors import Problem
from protocols.messages import Message
from protocols.sections import Site
from protocols.tracking import StepRecord


class Config(Message, frozen=True, kw_only=True):
    """``[[trackers]] kind = "wandb"``.

    Attributes:
        project: Of the run there; its name there is that of the run's folder.
        mode: ``offline`` writes below the run's folder and needs neither network nor login.
    """

    project: str = "conductor"
    mode: Literal["offline", "online"] = "offline"


_LIBRARY = threading.Lock()
"""Whoever begins or ends a run: one process of the library's serves all of them."""


class Board:
    """The outlet; a run beside others that the caller may have in this process."""

    def __init__(self, cfg: Config, folder: Path) -> None:
        self._library: Any = import_module("wandb")
        settings = self._library.Settings(silent=True, console="off")
        where = {"project": cfg.project, "name": folder.name, "dir": str(folder), "mode": cfg.mode}
        with _LIBRARY:
            self._run = self._library.init(**where, settings=settings, reinit="create_new")

    def write(self, record: StepRecord) -> None:
        """Hand one record over."""
        self._run.log(record.metrics, step=record.step)

    def rewind(self, step: int) -> None:
        """Do nothing: a run that goes on is another one there, which begins after ``step``."""

    def close(self) -> None:
        """Finish the run there, and wait until the library's process has written it all and ended.

        ``finish`` comes back before the last records are in the file, and that process would outlive the run.
        """
        with _LIBRARY:
            self._run.finish()
            if self._library.setup().most_recent_active_run is None:
                self._library.teardown()


def check(cfg: Config, site: Site) -> Sequence[Problem]:
    """Say what is not installed."""
    del cfg, site
    return find_missing("wandb", field="trackers.kind", kind="wandb", extra="wandb")


@asynccontextmanager
async def open(cfg: Config, host: Host) -> AsyncGenerator[OutletTracker]:  # noqa: A001 - the adapters' common name
    """Open the tracker; without a run folder it writes below the working folder."""
    folder = Path(host.site.run_dir or ".")
    async with open_outlet("wandb", partial(Board, cfg, folder), host.site.run_dir) as tracker:
        yield tracker
