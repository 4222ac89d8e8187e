"""Generates with PyTorch and any causal language model of transformers, in a thread of its own.

The thread (``thread``) runs a decoder (``decoder``) that makes one token at a time for every running
sample; requests join, leave and are aborted, and weights are swapped, between two tokens. The event loop
(``engine``) sees messages and plain numbers, never a tensor.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Annotated

from msgspec import Meta

from protocols.adapters import Host
from protocols.errors import Problem
from protocols.inference import EnginePort
from protocols.messages import Message
from protocols.sections import Site

PositiveInt = Annotated[int, Meta(ge=1)]


class Config(Message, frozen=True, kw_only=True):
    """How an engine decodes.

    Attributes:
        slots: Samples decoded at once. A request with more samples than that is decoded alone.
        max_waiting: Samples that may wait for a slot; more are refused as ``EngineBusy``.
        context: Most tokens of prompt and completion together; None: as many as the model was made for.
        threads: Threads that torch computes with, in the whole process; None leaves them as they are.
        deterministic: A sample's tokens and log-probabilities do not depend, to the last bit, on what
            else is decoded. Needs one thread, or ``MKL_CBWR=AVX2`` in the environment of the process;
            tried out at start. Fewer than 16 samples at once then cost as much as 16.
    """

    slots: PositiveInt = 256
    max_waiting: Annotated[int, Meta(ge=0)] = 4096
    context: PositiveInt | None = None
    threads: PositiveInt | None = None
    deterministic: bool = False


def check(cfg: Config, site: Site) -> Sequence[Problem]:  # noqa: ARG001 - the signature of every adapter
    """Return a problem where the job names no model."""
    if site.model is not None:
        return []
    why, mend = "the torch engine needs a model", "add a section [model]"
    return [Problem(field="model", value=None, why=why, mend=mend)]


def capacity(cfg: Config) -> int:
    """Return how many samples the engine takes at once, those that wait included."""
    return cfg.slots + cfg.max_waiting


@asynccontextmanager
async def open(cfg: Config, host: Host) -> AsyncGenerator[EnginePort]:  # noqa: A001 - the name of every adapter's
    """Build the model off the event loop, warm it up, and run its thread until the block ends.

    Raises:
        UserError: The model cannot be loaded or decoded, or its context is shorter than asked for, or the
            machine is not set up for ``deterministic``.
    """
    from backends.engines.torch.engine import open_engine  # noqa: PLC0415 - torch is heavy

    async with open_engine(cfg, host) as engine:
        yield engine
