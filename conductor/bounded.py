"""Every wait of the controller is bounded and named, in one place.

Ports take no time-out: the caller owns the clock. Here is the caller, who also knows which waits are open.
"""

from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import anyio

from conductor.config import Deadlines
from conductor.core.waits import Limit, Wait, Waits
from protocols.backend import Backend, LauncherPort, PayloadPort, PlacementPort
from protocols.errors import DeadlineExceeded
from protocols.grading import GraderPort
from protocols.inference import InferenceControllerPort
from protocols.ledger import LedgerPort
from protocols.prompts import PromptSourcePort
from protocols.rollouts import RolloutExecutorPort
from protocols.tracking import TrackerPort
from protocols.training import TrainerPort
from protocols.wire import port_methods

P = TypeVar("P")

_FIELDS: Mapping[type, Mapping[str, str]] = {
    PromptSourcePort: {"*": "prompt"},
    RolloutExecutorPort: {"*": "group", "abort": "abort"},
    InferenceControllerPort: {"*": "abort", "generate": "group", "publish": "publish"},
    GraderPort: {"*": "reward"},
    TrainerPort: {
        "*": "train",
        "stage_weights": "publish",
        "outcome": "abort",
        "discard": "abort",
        "snapshot": "checkpoint",
        "save": "checkpoint",
        "load": "checkpoint",
    },
    LedgerPort: {"*": "record", "replay": "start", "compact": "checkpoint"},
    TrackerPort: {"*": "record"},
    PlacementPort: {"*": "start", "release": "abort"},
    LauncherPort: {"*": "start", "kill": "abort"},
    PayloadPort: {"*": "record"},
}
"""For each port, the field of ``Deadlines`` that bounds a method; ``*`` stands for the others."""


_WATCHING = frozenset({"statuses", "poll"})
"""Calls of those who watch a run: what they ask is no progress of it."""


def bounded(port: type[P], implementation: P, deadlines: Deadlines, waits: Waits) -> P:
    """Return ``implementation`` with every call bounded, and noted in ``waits`` while it is open.

    Raises (from its methods):
        DeadlineExceeded: A call took too long; it names the method and the ids of its first argument.
    """
    fields, unnoted = _FIELDS[port], Waits(waits.clock)
    name = port.__name__.removesuffix("Port")
    methods: dict[str, Callable[..., Awaitable[Any]]] = {}
    for method in port_methods(port):
        seconds = getattr(deadlines, fields.get(method, fields["*"]))
        limit = (unnoted if method in _WATCHING else waits).limit(seconds)
        methods[method] = _bounded_method(getattr(implementation, method), f"{name}.{method}", limit)
    return cast("P", SimpleNamespace(**methods))


def _bounded_method(method: Callable[..., Awaitable[Any]], call: str, limit: Limit) -> Callable[..., Awaitable[Any]]:
    async def bounded_call(*args: Any) -> Any:
        scope = anyio.CancelScope()
        wait = Wait(limit, call, args[0] if args else None, scope.cancel)
        with wait, scope:
            return await method(*args)
        raise DeadlineExceeded(what=wait.name, deadline_s=limit.seconds)

    return bounded_call


@contextmanager
def within(waits: Waits, call: str, subject: str, seconds: float) -> Generator[None]:
    """Bound a wait for more than one call of a port, and note it while it is open.

    Raises:
        DeadlineExceeded: The block was cut after ``seconds``.
    """
    scope = anyio.CancelScope()
    wait = Wait(waits.limit(seconds), call, subject, scope.cancel)
    with wait, scope:
        yield
    if scope.cancelled_caught:
        raise DeadlineExceeded(what=wait.name, deadline_s=seconds)


def bounded_backend(backend: Backend, deadlines: Deadlines, waits: Waits) -> Backend:
    """Return the three ports of a backend, bounded. Calls to workloads are bounded by their own ports."""
    return Backend(
        placement=bounded(PlacementPort, backend.placement, deadlines, waits),
        launcher=bounded(LauncherPort, backend.launcher, deadlines, waits),
        payloads=bounded(PayloadPort, backend.payloads, deadlines, waits),
    )
