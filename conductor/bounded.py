"""Every wait of the controller is bounded and named, in one place.

Ports take no time-out: the caller owns the clock. Here is the caller, who also knows which waits are open.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, TypeVar

from conductor.config import Deadlines
from conductor.core.waits import Waits
from protocols.aio import deadline
from protocols.backend import Backend, LauncherPort, PayloadPort, PlacementPort
from protocols.grading import GraderPort
from protocols.inference import InferenceControllerPort
from protocols.ledger import LedgerPort
from protocols.prompts import PromptSourcePort
from protocols.rollouts import RolloutExecutorPort
from protocols.tracking import TrackerPort
from protocols.training import TrainerPort
from protocols.wire import client, port_methods

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
    fields = _FIELDS[port]
    name = port.__name__.removesuffix("Port")
    seconds = {method: getattr(deadlines, fields.get(method, fields["*"])) for method in port_methods(port)}

    async def send(method: str, args: tuple[Any, ...]) -> Any:
        box: list[Any] = []
        call, of, limit = f"{name}.{method}", _identity(args), seconds[method]
        noted = nullcontext() if method in _WATCHING else waits.open(call, of, limit)
        with noted, deadline(f"{call} of {of}" if of else call, limit):
            box.append(await getattr(implementation, method)(*args))
        return box[0]

    return client(port, send)


def bounded_backend(backend: Backend, deadlines: Deadlines, waits: Waits) -> Backend:
    """Return the three ports of a backend, bounded. Calls to workloads are bounded by their own ports."""
    return Backend(
        placement=bounded(PlacementPort, backend.placement, deadlines, waits),
        launcher=bounded(LauncherPort, backend.launcher, deadlines, waits),
        payloads=bounded(PayloadPort, backend.payloads, deadlines, waits),
    )


def _identity(args: tuple[Any, ...]) -> str:
    """Return the id that the first argument carries, for the name of the wait."""
    for field in ("lease_id", "dispatch_id", "worker_id", "version"):
        if args and (found := getattr(args[0], field, None)) is not None:
            return f"v{found}" if field == "version" else str(found)
    return args[0] if args and isinstance(args[0], str) else ""
