"""A backend: where workloads run. Placement, launcher and payload store, and nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from protocols.inference import InferenceControllerPort
from protocols.messages import Message, PayloadRef, WorkerId
from protocols.roles import RolesPort
from protocols.sections import Section, Site


class Resources(Message, frozen=True, kw_only=True):
    """What one workload needs, or one node has. 0 CPUs, 0 memory: it shares what is there."""

    cpus: float = 0.0
    accelerators: int = 0
    memory_gib: float = 0.0


class Node(Message, frozen=True, kw_only=True):
    """One machine.

    Attributes:
        name: No other node has it.
        total, free: What it has; ``accelerators`` are numbered from 0.
        device: What its accelerators are called (``cuda``); ``cpu`` where it has none.
        cpus: Numbers of the CPUs that the operator lets this job run on, in order; none: nothing is bound to CPUs
            there.
        domain: What fails as one with it (a rack, a power supply); empty: the node alone.
    """

    name: str
    total: Resources
    free: Resources
    device: str = "cpu"
    cpus: tuple[int, ...] = ()
    domain: str = ""


class Inventory(Message, frozen=True, kw_only=True):
    """What there is.

    Attributes:
        nodes: In the order in which they are filled.
        controller: The node that the controller runs on; None: it is none of these.
        own_processes: Whether each worker has a process of its own: several are then opened at once, and may train
            one policy together.
    """

    nodes: tuple[Node, ...]
    controller: str | None = None
    own_processes: bool = False


class Ranks(Message, frozen=True, kw_only=True):
    """Where a worker stands among others, each counted from 0 by node, then by device.

    Attributes:
        world: Among all workers.
        role: Among those of its role.
        node: Its node, among the nodes that are used.
        local: Among all workers on its node.
    """

    world: int
    role: int
    node: int
    local: int


class ReserveRequest(Message, frozen=True, kw_only=True):
    """Resources for one worker, under an id that the caller chose; on one node, or on any."""

    reservation_id: str
    resources: Resources
    node: str | None = None


class PlacementPort(Protocol):
    """What is there, and who holds it. Calls may be concurrent."""

    async def inventory(self) -> Inventory:
        """Return the nodes with what they have and what is free."""
        ...

    async def reserve(self, request: ReserveRequest) -> None:
        """Hold resources. Idempotent by id. Cancelling: ``release`` the id, whether or not it was reserved.

        Raises:
            Infeasible: More than any node has, free or not, or than the node has that was asked for.
            Transient: It would fit, but not now.
        """
        ...

    async def release(self, reservation_id: str) -> None:
        """Give it back. Idempotent; an unknown id, also of a dead run, is no error."""
        ...


class WorkloadSpec(Message, frozen=True, kw_only=True):
    """A workload to launch.

    Attributes:
        worker_id: Chosen by the caller.
        section: Section of the job the adapter is named in (``engine``), which says where it lies.
        adapter: The adapter and its options.
        site: Facts about the run.
        reservation_id: Where it may run.
        cpus: Numbers of the CPUs that it is bound to; none: it is not bound. A launcher that shares a process with
            its workers ignores them, and ``environment``.
        environment: Variables laid over those of the launcher, before the adapter is imported.
        devices: Numbers of the accelerators of its node that it may use, the first one its own; none: it computes on
            the CPU.
        ranks: Where it stands among the others; None: it was launched by itself.
    """

    worker_id: WorkerId
    section: str
    adapter: Section
    site: Site
    reservation_id: str
    cpus: tuple[int, ...] = ()
    environment: dict[str, str] = {}
    devices: tuple[int, ...] = ()
    ranks: Ranks | None = None


class WorkerState(Message, frozen=True, kw_only=True):
    """What a launcher knows of a worker.

    Attributes:
        pid: Of its process; None: it has none of its own.
        cause: Why it does not run any more; None: it runs.
        preempted: Whether it was somebody else who told it to end: its place was taken away.
        leaving: Whether it runs, and somebody gave notice that its place is about to be taken away.
    """

    pid: int | None = None
    cause: str | None = None
    preempted: bool = False
    leaving: bool = False

    @property
    def running(self) -> bool:
        """Whether it runs, as far as is known."""
        return self.cause is None


class LauncherPort(Protocol):
    """Starts workloads, carries calls to them, stops them. Calls may be concurrent."""

    async def launch(self, spec: WorkloadSpec) -> None:
        """Open the workload's adapter where it is to run; it is ready on return. Not idempotent.

        Cancelling: nothing remains after ``kill``.

        Raises:
            UserError: Its options are wrong.
            PortFailed: It could not be opened.
        """
        ...

    async def call(self, worker_id: WorkerId, method: str, args: tuple[Any, ...]) -> Any:
        """Call one port method of a workload with messages; its result or ``ConductorError`` comes back.

        Cancelling: as the method's contract says.

        Raises:
            WorkerLost: No such worker, it is not open yet, or it died.
        """
        ...

    async def serve(self, endpoint: str, port: InferenceControllerPort) -> None:
        """Let workloads that are launched from now on reach the inference controller."""
        ...

    async def serve_roles(self, port: RolesPort) -> None:
        """Let workloads that are launched from now on reach one another, as ``Host.roles``."""
        ...

    async def poll(self) -> dict[WorkerId, WorkerState]:
        """Return every worker that was launched and not killed."""
        ...

    async def kill(self, worker_id: WorkerId) -> None:
        """Close and end a workload; nothing of it runs on return. Idempotent; unknown ids are no error."""
        ...


Bulk = Message | Mapping[str, Any]
"""A payload: one message, or arrays by name (tensors). It is not changed after ``put``."""


class PayloadPort(Protocol):
    """Bulk data by reference. Calls may be concurrent."""

    async def put(self, ref: PayloadRef, value: Bulk) -> None:
        """Store ``value`` under a reference that the caller chose. The last of two puts wins.

        Raises:
            Transient: No room now.
        """
        ...

    async def get(self, ref: PayloadRef) -> Bulk:
        """Return what was put; in one process it may be the very object.

        Raises:
            WorkerLost: It is not there, or not any more.
        """
        ...

    async def release(self, owner: str) -> None:
        """Forget everything whose owner starts with ``owner``. Idempotent; unknown owners are no error."""
        ...

    async def owners(self) -> frozenset[str]:
        """Return the owners that hold something."""
        ...

    async def spool(self, ref: PayloadRef, path: str) -> None:
        """Write a group's payload to a file that outlives the process; ``release`` leaves it there.

        Args:
            ref: Of a ``GroupPayload``.
            path: Of the file, absolute; its folder is there, and is reached from wherever payloads lie.

        Cancelling: it is written whole or not at all.

        Raises:
            WorkerLost: The payload is not there.
            PortFailed: The disk refuses.
        """
        ...

    async def unspool(self, ref: PayloadRef, path: str) -> None:
        """Store under ``ref`` what ``spool`` wrote. Idempotent.

        Raises:
            WorkerLost: The file is not there, or not what was written.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Backend:
    """Where the workloads of a run live."""

    placement: PlacementPort
    launcher: LauncherPort
    payloads: PayloadPort
