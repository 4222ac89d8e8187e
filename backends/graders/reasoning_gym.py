"""Rewards of reasoning-gym: each task is scored by the verifier of the generator that made it.

It reads the fields that prompts of ``kind = "reasoning_gym"`` carry, and runs in worker processes.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Annotated

from msgspec import Meta

from backends._extras import find_missing
from backends.graders import function
from backends.graders.function import FunctionGrader
from protocols.adapters import Host
from protocols.errors import Problem
from protocols.messages import Message
from protocols.sections import Site

SCORE = "backends._reasoning_gym:score"


class Config(Message, frozen=True, kw_only=True):
    """Options of ``[reward] kind = "reasoning_gym"``.

    Attributes:
        workers: Most worker processes.
        deadline_s: For one completion.
    """

    workers: Annotated[int, Meta(ge=1)] = 1
    deadline_s: Annotated[float, Meta(gt=0)] = 10.0


def check(cfg: Config, site: Site) -> Sequence[Problem]:  # noqa: ARG001 - the signature of every adapter
    """Return a problem where the package is missing."""
    return find_missing("reasoning_gym", field="reward.kind", kind="reasoning_gym", extra="reasoning")


@asynccontextmanager
async def open(cfg: Config, host: Host) -> AsyncGenerator[FunctionGrader]:  # noqa: A001 - the adapters' common name
    """Start a process that has loaded the verifiers; none is left when the block ends.

    Raises:
        UserError: The package cannot be imported.
    """
    options = function.Config(function=SCORE, workers=cfg.workers, deadline_s=cfg.deadline_s)
    async with function.open(options, host) as grader:
        yield grader
