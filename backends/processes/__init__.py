"""The backend of one machine with many processes: each workload in its own, payloads in shared memory.

A worker that crashes, hangs or leaks takes nothing with it but itself, and nothing of a run is left when it ends,
however it ends. See docs/processes.md.
"""

import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from backends._machine import MachinePlacement, accelerators, memory_gib, usable_cpus
from backends._state import default_place, open_state
from backends.processes.launcher import Manner, open_launcher
from backends.processes.payloads import SharedPayloads
from protocols.backend import Backend, Resources
from protocols.errors import Problem
from protocols.messages import Message
from protocols.sections import Site

Seconds = Annotated[float, Meta(gt=0)]


class Config(Message, frozen=True, kw_only=True):
    """Options of ``[backend] kind = "processes"``.

    Attributes:
        heartbeat_s: For how long a worker may be silent before it is killed. Its event loop answers, so this is also
            how long user code may block that loop.
        patience_s: How long a worker may take to close before it is killed.
        compute_processes: Workers that compute at the same time. A worker that nothing binds to CPUs gets
            ``OMP_NUM_THREADS`` = CPUs / this, unless the environment or the job sets it.
        payload_dir: Where bulk data lies until it is trained; None: /dev/shm, or the folder for temporary files where
            that has less than 1 GiB.
        payload_reserve_bytes: What must stay free there, for others use it too; a payload that would take it waits.
    """

    heartbeat_s: Seconds = 60.0
    patience_s: Seconds = 5.0
    compute_processes: Annotated[int, Meta(ge=1)] = 2
    payload_dir: str | None = None
    payload_reserve_bytes: Annotated[int, Meta(ge=0)] = 2**28


def check(cfg: Config, site: Site) -> Sequence[Problem]:
    """Return a problem where the system is not Linux, or there is no such folder."""
    problems: list[Problem] = []
    if sys.platform != "linux":
        why, mend = "only Linux ends the workers of a killed run", "set it to 'inproc'"
        problems.append(Problem(field="backend.kind", value="'processes'", why=why, mend=mend))
    if cfg.payload_dir is not None and not (Path(site.job_dir) / cfg.payload_dir).is_dir():
        why, mend = "there is no such folder", "make it, or leave it out"
        problems.append(Problem(field="backend.payload_dir", value=repr(cfg.payload_dir), why=why, mend=mend))
    return problems


@asynccontextmanager
async def open(cfg: Config, site: Site) -> AsyncGenerator[Backend]:  # noqa: A001 - the adapters' common name
    """Remove what dead runs left on this machine, then open the backend; its processes and files end with the block.

    Raises:
        PortFailed: There is no place for bulk data.
    """
    place = Path(site.job_dir) / cfg.payload_dir if cfg.payload_dir is not None else default_place()
    cpus = usable_cpus()
    total = Resources(cpus=len(cpus), accelerators=len(accelerators()), memory_gib=memory_gib())
    manner = Manner(
        heartbeat_s=cfg.heartbeat_s,
        patience_s=cfg.patience_s,
        compute_processes=cfg.compute_processes,
        reserve_bytes=cfg.payload_reserve_bytes,
    )
    with open_state(place) as state:
        folder = state.folder / "payloads"
        folder.mkdir()
        async with open_launcher(state, folder, manner) as launcher:
            payloads = SharedPayloads(folder, manner.reserve_bytes)
            placement = MachinePlacement(total, cpus, own_processes=True)
            yield Backend(placement=placement, launcher=launcher, payloads=payloads)
