"""The backend of one process: workloads are objects, calls are method calls, payloads stay where they are."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from backends._machine import MachinePlacement, memory_gib, usable_cpus
from backends.inproc.launcher import open_launcher
from backends.inproc.payloads import InprocPayloads
from protocols.backend import Backend, PlacementPort, Resources
from protocols.errors import Problem
from protocols.messages import Message
from protocols.sections import Site
from protocols.wire import over_codec


class Config(Message, frozen=True, kw_only=True):
    """Options of ``[backend] kind = "inproc"``.

    Attributes:
        encode_messages: Encode and decode every message that crosses a port, as a backend with processes
            would. It costs time and proves that nothing but messages crosses.
    """

    encode_messages: bool = False


def check(cfg: Config, site: Site) -> Sequence[Problem]:
    """Return nothing: one process is always there."""
    del cfg, site
    return ()


@asynccontextmanager
async def open(cfg: Config, site: Site) -> AsyncGenerator[Backend]:  # noqa: A001 - the adapters' common name
    """Open the backend; its workloads end with the block."""
    del site
    payloads = InprocPayloads(encode_messages=cfg.encode_messages)
    cpus = usable_cpus()
    placement: PlacementPort = MachinePlacement(Resources(cpus=len(cpus), memory_gib=memory_gib()), cpus)
    if cfg.encode_messages:
        placement = over_codec(PlacementPort, placement)
    async with open_launcher(payloads, encode_messages=cfg.encode_messages) as launcher:
        yield Backend(placement=placement, launcher=launcher, payloads=payloads)
