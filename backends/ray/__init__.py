"""The backend of a Ray cluster: each workload in an actor, payloads in the object store.

It connects to a cluster, or starts one of this machine that ends with the run. See docs/ray.md.
"""

import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Annotated

from msgspec import Meta

from backends._extras import find_missing
from protocols.backend import Backend
from protocols.errors import Problem
from protocols.messages import Message
from protocols.sections import Site

Seconds = Annotated[float, Meta(gt=0)]

_LONGEST_FOLDER = 30
"""Characters: Ray makes sockets beneath it, whose paths hold 107 bytes, 75 of them of its own and the run's."""


class Config(Message, frozen=True, kw_only=True):
    """Options of ``[backend] kind = "ray"``.

    Attributes:
        address: ``host:port`` of a running cluster, or ``auto`` for the one of this machine; None: the run starts one
            of this machine, and ends it.
        labels: Only nodes that carry all of these labels are used.
        domain_label: The label that says what fails as one with a node.
        heartbeat_s: For how long a worker may be silent before it is killed.
        patience_s: How long a worker may take to close before it is killed.
        reserve_s: How long the cluster may take to hold resources that are free.
        compute_processes: Workers of one node that compute at the same time. A worker that reserved no whole CPU gets
            ``OMP_NUM_THREADS`` = CPUs of its node / this, unless the job sets it.
        object_store_bytes: Memory for payloads of a cluster that the run starts; None: as much as Ray takes.
        folder: Where a cluster that the run starts keeps its sockets and logs.
    """

    address: str | None = None
    labels: dict[str, str] = {}
    domain_label: str = "ray.io/availability-zone"
    heartbeat_s: Seconds = 60.0
    patience_s: Seconds = 5.0
    reserve_s: Seconds = 30.0
    compute_processes: Annotated[int, Meta(ge=1)] = 2
    object_store_bytes: Annotated[int, Meta(ge=80 * 2**20)] | None = None
    folder: str = "/tmp"  # noqa: S108 - the folders in it are this user's alone


def check(cfg: Config, site: Site) -> Sequence[Problem]:
    """Return a problem where Ray is not installed, or where the options name what it cannot use."""
    del site
    problems = find_missing("ray", field="backend.kind", kind="ray", extra="ray")
    if sys.platform != "linux":
        why, mend = "only Linux ends the workers of a killed run", "set it to 'inproc'"
        problems.append(Problem(field="backend.kind", value="'ray'", why=why, mend=mend))
    if cfg.address is not None and "://" in cfg.address:
        why, mend = "the controller has to be on a machine of the cluster", "start it there, with host:port or 'auto'"
        problems.append(Problem(field="backend.address", value=repr(cfg.address), why=why, mend=mend))
    if len(cfg.folder) > _LONGEST_FOLDER:
        why, mend = f"the paths of sockets are short: {_LONGEST_FOLDER} characters at most", "name a shorter one"
        problems.append(Problem(field="backend.folder", value=repr(cfg.folder), why=why, mend=mend))
    return problems


@asynccontextmanager
async def open(cfg: Config, site: Site) -> AsyncGenerator[Backend]:  # noqa: A001 - the adapters' common name
    """Connect, or remove what dead runs left on this machine and start a cluster.

    All that is the run's ends with the block.

    Raises:
        PortFailed: There is no cluster at the address, or none can be started.
    """
    del site
    from backends.ray.backend import open_backend  # noqa: PLC0415 - an extra brings Ray

    async with open_backend(cfg) as backend:
        yield backend
