"""What workers reach of one another: the controller's side of ``RolesPort``."""

from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from anyio.lowlevel import checkpoint

from conductor.config import QueueConfig
from conductor.core.planning.wishes import EPISODE, EVALUATION, REWARD, ROLES
from conductor.fleet.attendance import Attendance
from conductor.fleet.calling import Call, Calls
from conductor.fleet.meeting import Meeting
from conductor.fleet.queues import RoleQueue
from conductor.fleet.spread import LeastBusy
from protocols.errors import UserError
from protocols.grading import GraderPort
from protocols.messages import WorkerId
from protocols.roles import Generation, Meet, RoleCall, RolesPort
from protocols.rollouts import RolloutExecutorPort
from protocols.wire import Codec

_CALLABLE: Mapping[str, type] = {EPISODE: RolloutExecutorPort, REWARD: GraderPort, EVALUATION: GraderPort}
"""Roles of the project's that other workers may call."""


class _Role:
    """One role that can be called.

    Attributes:
        calls: Calls its workers with what is encoded.
        attendance: Who of them is there.
        least_busy: Lends the one with the fewest calls open.
        meeting: Where they meet.
    """

    def __init__(self, calls: Calls, attendance: Attendance, *, patience_s: float) -> None:
        self.calls = calls
        self.attendance = attendance
        self.least_busy = LeastBusy({member: member for member in calls.members}, attendance)
        self.meeting = Meeting(calls.members, patience_s=patience_s)

    def absent(self) -> WorkerId | None:
        """Return the first of its workers where all are away."""
        members = self.calls.members
        return members[0] if self.attendance.away.issuperset(members) else None


class RoleDesk:
    """Every role that was launched, and the queues of the job.

    Args:
        queues: By name.
        patience_s: For how long workers that meet wait for one another.
    """

    def __init__(self, queues: Mapping[str, QueueConfig], *, patience_s: float) -> None:
        self._patience_s = patience_s
        self._roles: dict[str, _Role] = {}
        self._consumers = {name: queue.consumer for name, queue in queues.items()}
        self._queues = {
            name: RoleQueue(name, queue.size, partial(self._absent, queue.consumer)) for name, queue in queues.items()
        }

    @contextmanager
    def open(self) -> Generator[None]:
        """Forget at the end what is left in the queues."""
        try:
            yield
        finally:
            for queue in self._queues.values():
                queue.discard()

    def add(self, name: str, members: tuple[WorkerId, ...], call: Call, attendance: Attendance) -> None:
        """Let workers of a role be called that are about to be launched; ``call`` carries what is encoded."""
        self._roles[name] = _Role(Calls(members, call), attendance, patience_s=self._patience_s)
        attendance.told.append(partial(self._lost, name))

    async def call(self, call: RoleCall) -> dict[WorkerId, bytes]:
        """Carry a call; see ``RolesPort.call``."""
        await checkpoint()
        role = self._role(call.role)
        match call.to:
            case "all":
                return await role.calls.all(call.method, *call.args)
            case "each":
                return await role.calls.scattered(call.method, call.args)
            case "first":
                member = role.calls.members[0]
                return {member: await role.calls.first(call.method, *call.args)}
            case "worker":
                member = call.worker
                if member is None or member not in role.calls.members:
                    raise UserError(f"the role {call.role} has no worker {member}")
                return {member: await role.calls.one(member, call.method, *call.args)}
            case "one":
                async with role.least_busy.lend() as member:
                    return {member: await role.calls.one(member, call.method, *call.args)}

    async def rendezvous(self, worker: WorkerId) -> Generation:
        """See ``RolesPort.rendezvous``."""
        return await self._role(_role_of(worker)).meeting.rendezvous(worker)

    async def gather(self, meet: Meet) -> tuple[bytes, ...]:
        """See ``RolesPort.gather``."""
        return await self._role(_role_of(meet.worker)).meeting.gather(meet)

    async def put(self, queue: str, item: bytes) -> None:
        """See ``RolesPort.put``."""
        await checkpoint()
        await self._queue(queue).put(item)

    async def take(self, queue: str) -> bytes | None:
        """See ``RolesPort.take``."""
        await checkpoint()
        return await self._queue(queue).take()

    async def close(self, queue: str) -> None:
        """See ``RolesPort.close``."""
        await checkpoint()
        await self._queue(queue).close()

    def _lost(self, role: str, worker: WorkerId) -> None:
        self._roles[role].meeting.lost(worker)
        for name, consumer in self._consumers.items():
            if consumer == role:
                self._queues[name].lost()

    def _absent(self, role: str) -> WorkerId | None:
        return self._roles[role].absent() if role in self._roles else None

    def _role(self, name: str) -> _Role:
        if name not in self._roles:
            raise UserError(f"no role {name!r} can be called; there are {', '.join(self._roles) or 'none'}")
        return self._roles[name]

    def _queue(self, name: str) -> RoleQueue:
        if name not in self._queues:
            raise UserError(f"the job has no queue {name!r}; name it in [fleet.queues]")
        return self._queues[name]


def carrier(role: str, send: Callable[[WorkerId, str, tuple[Any, ...]], Awaitable[Any]]) -> Call | None:
    """Return what carries calls of other workers to a role; None: the controller has it to itself."""
    if role in _CALLABLE:
        return built_in(_CALLABLE[role], send)
    return None if role in ROLES else own(send)


def own(send: Callable[[WorkerId, str, tuple[Any, ...]], Awaitable[Any]]) -> Call:
    """Return what carries calls to a role of the user's own, which reads them itself."""

    async def carry(member: WorkerId, method: str, args: tuple[bytes]) -> bytes:
        return await send(member, "answer", (method, *args))

    return carry


def built_in(port: type, send: Callable[[WorkerId, str, tuple[Any, ...]], Awaitable[Any]]) -> Call:
    """Return what carries calls to a role whose workers are a port of the project's."""
    codec = Codec(port)

    async def carry(member: WorkerId, method: str, args: tuple[bytes]) -> bytes:
        try:
            given = codec.decode_args(method, args[0])
        except (KeyError, ValueError) as exc:  # a decoding error is a ValueError
            raise UserError(f"{member} does not take {method} so: {exc}") from exc
        return codec.encode_result(await send(member, method, given))

    return carry


def _role_of(worker: WorkerId) -> str:
    return worker.rpartition("/")[0]


_: type[RolesPort] = RoleDesk
