"""Metrics in MLflow."""

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


class Config(Message, frozen=True, kw_only=True):
    """``[[trackers]] kind = "mlflow"``.

    Attributes:
        uri: Of the tracking server.
        experiment: Of the run there; made where it is not there. The run's name is that of its folder.
    """

    uri: str
    experiment: str = "conductor"


class Experiment:
    """The outlet."""

    def __init__(self, cfg: Config, run_name: str) -> None:
        self._entities: Any = import_module("mlflow.entities")
        tracking: Any = import_module("mlflow.tracking")
        self._client = tracking.MlflowClient(tracking_uri=cfg.uri)
        found = self._client.get_experiment_by_name(cfg.experiment)
        experiment_id = self._client.create_experiment(cfg.experiment) if found is None else found.experiment_id
        self._run_id: str = self._client.create_run(experiment_id, run_name=run_name).info.run_id

    def write(self, record: StepRecord) -> None:
        """Hand one record over, in one request."""
        now_ms = int(time.time() * 1000)
        metric = self._entities.Metric
        self._client.log_batch(
            self._run_id, [metric(name, number, now_ms, record.step) for name, number in record.metrics.items()]
        )

    def rewind(self, step: int) -> None:
        """Do nothing: a run that goes on is another one there, which begins after ``step``."""

    def close(self) -> None:
        """Finish the run there."""
        self._client.set_terminated(self._run_id)


def check(cfg: Config, site: Site) -> Sequence[Problem]:
    """Say what is not installed."""
    del cfg, site
    return find_missing("mlflow", field="trackers.kind", kind="mlflow", extra="mlflow")


@asynccontextmanager
async def open(cfg: Config, host: Host) -> AsyncGenerator[OutletTracker]:  # noqa: A001 - the adapters' common name
    """Open the tracker."""
    run = Path(host.site.run_dir or "run").name
    async with open_outlet("mlflow", partial(Experiment, cfg, run), host.site.run_dir) as tracker:
        yield tracker
