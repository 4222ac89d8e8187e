"""The connection to a cluster, and the cluster itself where the run starts one.

All of it blocks, on purpose: nothing can be cancelled half way, it happens before a run and after it, and what Ray
starts dies with the thread that started it.
"""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import ray.exceptions as rx

from backends._leftovers import MARK
from backends._machine import accelerators, usable_cpus
from backends._state import open_state
from backends.ray import Config
from backends.ray.reaping import mark_of, reap
from protocols.errors import PortFailed, UserError

_OF_A_LOCAL_CLUSTER = {
    "RAY_AUTH_MODE": "disabled",  # else it leaves a token in the home folder
    "RAY_USAGE_STATS_ENABLED": "0",
}
_ANSWER_S = 5.0
_FAILURES = (ConnectionError, OSError, RuntimeError, ValueError, TimeoutError, rx.RayError)


@dataclass(frozen=True, kw_only=True)
class Session:
    """A connection.

    Attributes:
        node: Ray's id of the node that the controller is on.
        mark: What all processes that workers of this run start carry, and those of no other.
    """

    node: str
    mark: str


@contextmanager
def open_session(cfg: Config) -> Generator[Session]:
    """Connect, and remove what dead runs left on the cluster; without an address, on this machine, and start one.

    Raises:
        UserError: This process is connected already.
        PortFailed: There is no cluster there, or none can be started.
    """
    if ray.is_initialized():
        raise UserError("this process is connected to a Ray cluster already; ray.shutdown() ends that")
    if cfg.address is not None:
        _find_listener(cfg.address)
        with _connected(f"no Ray cluster answers at {cfg.address}", address=cfg.address):
            reap()
            yield _session(mark_of(ray.get_runtime_context().get_job_id()))
        return
    with open_state(Path(cfg.folder)) as state:
        mark = f"{state.folder}:"
        with (
            environment({**_OF_A_LOCAL_CLUSTER, MARK: mark}),
            _connected("a Ray cluster could not be started", **_of_this_machine(cfg, state.folder)),
        ):
            yield _session(mark)


def _of_this_machine(cfg: Config, folder: Path) -> dict[str, Any]:
    return {
        "address": "local",
        "num_cpus": len(usable_cpus()),
        "num_gpus": len(accelerators()),
        "include_dashboard": False,
        "object_store_memory": cfg.object_store_bytes,
        "labels": cfg.labels,
        "_temp_dir": str(folder),
    }


@contextmanager
def _connected(otherwise: str, **options: Any) -> Generator[None]:
    try:
        with _signals_kept():
            ray.init(log_to_driver=False, configure_logging=False, **options)
    except _FAILURES as exc:
        ray.shutdown()
        raise PortFailed(f"{otherwise}: {exc}") from exc
    try:
        yield
    finally:
        ray.shutdown()


def _find_listener(address: str) -> None:
    """Look whether anybody listens there: Ray itself asks for a minute before it gives up.

    Raises:
        PortFailed: Nobody does.
    """
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        return  # "auto": Ray knows
    try:
        socket.create_connection((host, int(port)), _ANSWER_S).close()
    except OSError as exc:
        raise PortFailed(f"no Ray cluster answers at {address}: {exc}") from exc


@contextmanager
def _signals_kept() -> Generator[None]:
    """Give SIGTERM back to whom it belonged: Ray takes it, and ends the process where it stands."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


@contextmanager
def environment(variables: dict[str, str]) -> Generator[None]:
    """Set variables that Ray and all its processes read, and put back what was there."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            with contextlib.suppress(KeyError):
                del os.environ[name]
            if value is not None:
                os.environ[name] = value


def _session(mark: str) -> Session:
    return Session(node=ray.get_runtime_context().get_node_id(), mark=mark)
