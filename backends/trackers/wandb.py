"""Metrics in Weights & Biases: on its server, or offline in a folder that ``wandb sync`` uploads later."""

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


class Board:
    """The outlet."""

    def __init__(self, cfg: Config, folder: Path) -> None:
        library: Any = import_module("wandb")
        settings = library.Settings(silent=True, console="off")
        self._run = library.init(
            project=cfg.project, name=folder.name, dir=str(folder), mode=cfg.mode, settings=settings
        )

    def write(self, record: StepRecord) -> None:
        """Hand one record over."""
        self._run.log(record.metrics, step=record.step)

    def rewind(self, step: int) -> None:
        """Do nothing: a run that goes on is another one there, which begins after ``step``."""

    def close(self) -> None:
        """Finish the run there."""
        self._run.finish()


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
