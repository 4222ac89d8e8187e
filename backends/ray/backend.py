"""The three ports over one connection."""

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import ray
import ray.exceptions as rx
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from backends.ray import Config
from backends.ray.directory import GROUPS, PayloadDirectory
from backends.ray.launcher import Manner, open_launcher
from backends.ray.payloads import RayPayloads
from backends.ray.placement import RayPlacement
from backends.ray.session import Session, open_session
from protocols.backend import Backend


@asynccontextmanager
async def open_backend(cfg: Config) -> AsyncGenerator[Backend]:
    """Open the backend; see ``backends.ray.open``."""
    manner = Manner(heartbeat_s=cfg.heartbeat_s, patience_s=cfg.patience_s, compute_processes=cfg.compute_processes)
    with open_session(cfg) as session, open_directory(session) as directory:
        placement = RayPlacement(cfg.labels, cfg.domain_label, session.node, cfg.reserve_s)
        async with open_launcher(session, placement, directory, manner) as launcher:
            yield Backend(placement=placement, launcher=launcher, payloads=RayPayloads(directory))


@contextmanager
def open_directory(session: Session) -> Generator[Any]:
    """Start the payload directory on the controller's node, where groups are spooled to; what it holds ends with it."""
    here = NodeAffinitySchedulingStrategy(session.node, soft=False)
    options = {"num_cpus": 0, "max_restarts": 0, "scheduling_strategy": here}
    made: Any = ray.remote(concurrency_groups=GROUPS)  # pyright: ignore[reportCallIssue]
    directory: Any = made(PayloadDirectory).options(**options).remote()
    try:
        yield directory
    finally:
        with suppress(rx.RayError):
            ray.kill(directory)
