"""The metrics of the last step for Prometheus to scrape: ``http://ADDRESS:PORT/metrics``."""

import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from backends._extras import find_missing
from backends.trackers._outlet import OutletTracker, open_outlet
from protocols.adapters import Host
from protocols.errors import Problem
from protocols.messages import Message
from protocols.sections import Site
from protocols.tracking import StepRecord

_NOT_A_NAME = re.compile(r"[^a-zA-Z0-9_]")


class Config(Message, frozen=True, kw_only=True):
    """``[[trackers]] kind = "prometheus"``.

    Attributes:
        port: That answers; 0: any that is free.
        address: That it answers at. The default is this machine alone: nothing protects it.
    """

    port: Annotated[int, Meta(ge=0, le=65535)] = 9400
    address: str = "127.0.0.1"


class Endpoint:
    """The outlet: a gauge for each metric, and a server that the library runs in a thread.

    Args:
        run: The label ``run`` of every gauge.
    """

    def __init__(self, cfg: Config, run: str) -> None:
        library: Any = import_module("prometheus_client")
        self._registry = library.CollectorRegistry()
        self._gauge = library.Gauge
        self._gauges: dict[str, Any] = {}
        self._run = run
        server, thread = library.start_http_server(cfg.port, addr=cfg.address, registry=self._registry)
        self._server, self._thread = server, thread

    @property
    def port(self) -> int:
        """The port that answers."""
        return self._server.server_port

    def write(self, record: StepRecord) -> None:
        """Set every gauge; one that a step does not tell of keeps its last value."""
        for name, number in {"step": float(record.step), **record.metrics}.items():
            if name not in self._gauges:
                exported = f"conductor_{_NOT_A_NAME.sub('_', name)}"
                self._gauges[name] = self._gauge(exported, name, ["run"], registry=self._registry)
            self._gauges[name].labels(self._run).set(number)

    def rewind(self, step: int) -> None:
        """Do nothing: only the last step is told of."""

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def check(cfg: Config, site: Site) -> Sequence[Problem]:
    """Say what is not installed; a port that is taken stops no run."""
    del cfg, site
    return find_missing("prometheus_client", field="trackers.kind", kind="prometheus", extra="prometheus")


@asynccontextmanager
async def open(cfg: Config, host: Host) -> AsyncGenerator[OutletTracker]:  # noqa: A001 - the adapters' common name
    """Open the tracker; it answers from the first step on."""
    run = Path(host.site.run_dir or "run").name
    async with open_outlet("prometheus", partial(Endpoint, cfg, run), host.site.run_dir) as tracker:
        yield tracker
