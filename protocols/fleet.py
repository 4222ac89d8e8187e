"""The plan of a fleet: which workers there are, where each runs, and with what. Made before anything is launched."""

from typing import Annotated, Literal

from msgspec import Meta

from protocols.backend import Ranks, Resources
from protocols.messages import Message, WorkerId
from protocols.sections import Section

Count = Annotated[int, Meta(ge=0)]
Strategy = Literal["pack", "spread"]
"""How instances find nodes: ``pack`` fills one node before the next, ``spread`` takes the emptiest failure domain."""

CONTROLLER = "controller"
"""The caller that is no role: the controller itself."""


Cause = Literal["worker", "controller", "preemption"]
"""Why a worker has to be launched again: it failed; it could not be launched, which is not its doing; its place was
taken away."""


class Restarts(Message, frozen=True, kw_only=True):
    """How often one worker may fail before its role has, a budget for each cause. Progress refills them.

    Attributes:
        worker: Failures of its own: it crashed, it hung.
        controller: Launches that failed through no fault of its own.
        preemption: Times that its place was taken away.
    """

    worker: Count = 3
    controller: Count = 8
    preemption: Count = 16

    def allowed(self, cause: Cause) -> int:
        """Return the budget of a cause."""
        return {"worker": self.worker, "controller": self.controller, "preemption": self.preemption}[cause]


class PlannedRole(Message, frozen=True, kw_only=True):
    """One role.

    Attributes:
        name: ``rollout``.
        instances: How many workers it has, ``rollout/0`` onwards.
        resources: Of each; no accelerators where the fleet has none.
        strategy: How its instances find nodes.
        restarts: Its failure budget.
    """

    name: str
    instances: int
    resources: Resources
    strategy: Strategy
    restarts: Restarts


class Vertex(Message, frozen=True, kw_only=True):
    """One worker.

    Attributes:
        name: Its id, role and instance: ``rollout/0``.
        role: One of the plan's roles.
        section: Section of the job that its adapter is named in.
        adapter: What it runs, and with which options.
        environment: Variables of the job, its role and itself; the nearest wins.
        ranks: Where it stands among the others.
        node: Where it runs.
        domain: What fails as one with its node.
        device: What it computes on: what the node calls its accelerators, or ``cpu``.
        devices: Numbers of the node's accelerators; none on a CPU.
        cpus: Numbers of the CPUs that it is bound to; none: it is not bound.
        bundle: What it is placed with.
    """

    name: WorkerId
    role: str
    section: str
    adapter: Section
    environment: dict[str, str]
    ranks: Ranks
    node: str
    domain: str
    device: str
    devices: tuple[int, ...]
    cpus: tuple[int, ...]
    bundle: str


class Edge(Message, frozen=True, kw_only=True):
    """One role calls another. ``caller`` may be ``controller``."""

    caller: str
    callee: str


class Bundle(Message, frozen=True, kw_only=True):
    """Workers that are needed together and lie on one node.

    Attributes:
        name: Of the first of its roles and its number, ``rollout/0``.
        node: Where.
        resources: What it takes there; a device that several share counts once.
        members: The workers, in the order of the roles.
    """

    name: str
    node: str
    resources: Resources
    members: tuple[WorkerId, ...]


class Plan(Message, frozen=True, kw_only=True):
    """The whole fleet: a function of a job and an inventory, the same for all who read it.

    Attributes:
        roles: In the order in which they are launched.
        vertices: Role by role, instance by instance.
        edges: Who calls whom.
        bundles: What is placed together; each vertex is in one.
        controller_node: Where the controller runs; None: on none of the nodes.
        controller_cpus: CPUs of that node that no worker is bound to.
    """

    roles: tuple[PlannedRole, ...]
    vertices: tuple[Vertex, ...]
    edges: tuple[Edge, ...]
    bundles: tuple[Bundle, ...]
    controller_node: str | None
    controller_cpus: tuple[int, ...]

    def role(self, name: str) -> PlannedRole:
        """Return a role by its name.

        Raises:
            KeyError: The plan has none by that name.
        """
        for role in self.roles:
            if role.name == name:
                return role
        raise KeyError(name)

    def workers(self, role: str) -> tuple[Vertex, ...]:
        """Return the workers of a role, instance by instance; none for a role that the plan has not."""
        return tuple(vertex for vertex in self.vertices if vertex.role == role)
