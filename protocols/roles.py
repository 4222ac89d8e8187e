"""Workers reach one another: calls of a role, meetings of a role's own workers, queues between roles.

All of it goes by way of the controller, which knows who is there. What is large travels by ``PayloadRef``.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Generic, Literal, Protocol, TypeVar

import msgspec

from protocols.messages import Message, WorkerId
from protocols.wire import Codec, client

P = TypeVar("P")
T = TypeVar("T")


class RolePort(Protocol):
    """A worker of a role of the user's own. Calls may be concurrent."""

    async def answer(self, method: str, args: bytes) -> bytes:
        """Call a public coroutine method of it; arguments and result as MessagePack, by its annotations.

        Raises:
            UserError: It has no such method, or the arguments are not what that takes.
            PortFailed: The method raised what is no ``ConductorError``.
        """
        ...


class RoleCall(Message, frozen=True, kw_only=True):
    """A call to workers of a role.

    Attributes:
        role: ``judge``.
        to: Whom: the one with the fewest calls open, a ``worker``, that of rank 0, all, or each its own of ``args``.
        worker: Where ``to`` is ``worker``.
        method: Which.
        args: Arguments of one call, encoded; ``each``: of each, in the order of their ranks.
    """

    role: str
    to: Literal["one", "worker", "first", "all", "each"]
    worker: WorkerId | None = None
    method: str
    args: tuple[bytes, ...]


class Generation(Message, frozen=True, kw_only=True):
    """One round in which all workers of a role met.

    Attributes:
        number: Counts the rounds, from 1; nobody meets anybody of an older one.
        rank: Of who is told.
        world: How many they are.
    """

    number: int
    rank: int
    world: int


class Meet(Message, frozen=True, kw_only=True):
    """A worker comes to where those of its role meet.

    Attributes:
        worker: Who.
        generation: Of which round.
        value: What it brings.
    """

    worker: WorkerId
    generation: int
    value: bytes = b""


class RolesPort(Protocol):
    """The controller's side. Calls may be concurrent."""

    async def call(self, call: RoleCall) -> dict[WorkerId, bytes]:
        """Carry a call; returns what each said that was called, encoded. Cancelling cancels what was called.

        Raises:
            UserError: There is no such role or worker.
            InvariantError: There are not as many arguments as workers.
            WorkerLost: One that was called is gone.
            ConductorError: What the first that failed raised.
        """
        ...

    async def rendezvous(self, worker: WorkerId) -> Generation:
        """Wait until every worker of the role has come to this round. It ends the generation before.

        Cancelling: it has not come.

        Raises:
            PeersLost: Some did not come in time; it names them.
        """
        ...

    async def gather(self, meet: Meet) -> tuple[bytes, ...]:
        """Wait until every worker of a generation has come; returns what each brought, by rank.

        Every worker makes the same calls in the same order. Cancelling: the generation ends.

        Raises:
            PeersLost: The generation is over, or ended meanwhile; it names the ranks that were missing.
        """
        ...

    async def put(self, queue: str, item: bytes) -> None:
        """Put an item into a queue; wait while it is full. Cancelling: it was put or not.

        Raises:
            UserError: There is no such queue.
            WorkerLost: Nobody is there who could take it.
            QueueClosed: It was closed.
        """
        ...

    async def take(self, queue: str) -> bytes | None:
        """Take the oldest item; wait while there is none. None: the queue was closed and is empty.

        Each item is taken once at most: what a worker had taken is lost with it.

        Raises:
            UserError: There is no such queue.
        """
        ...

    async def close(self, queue: str) -> None:
        """Let no more come into a queue; what is in it can be taken. Idempotent.

        Raises:
            UserError: There is no such queue.
        """
        ...


class Role(Generic[P]):
    """The workers of one role, as others call them: ``await judges.one.score(batch)``.

    Args:
        port: What carries the calls.
        name: Of the role.
        kind: A protocol or class with the methods that are called, annotated with messages or built-in values.
    """

    def __init__(self, port: RolesPort, name: str, kind: type[P]) -> None:
        self._port = port
        self._name = name
        self._kind = kind
        self._codec = Codec(kind)

    @property
    def one(self) -> P:
        """The worker that has the fewest calls open; a call waits while none is there."""
        return self._client("one")

    @property
    def first(self) -> P:
        """The worker of rank 0."""
        return self._client("first")

    def at(self, worker: WorkerId) -> P:
        """Return a certain worker."""
        return self._client("worker", worker)

    async def all(self, method: str, *args: Any) -> dict[WorkerId, Any]:
        """Call all workers at once; returns what each said, by rank.

        Raises:
            ConductorError: Of the first that failed.
        """
        return await self._call("all", method, (self._codec.encode_args(args),))

    async def scattered(self, method: str, parts: Sequence[Any]) -> dict[WorkerId, Any]:
        """Call all workers at once, each with its part as the one argument; returns what each said, by rank.

        Raises:
            InvariantError: There are not as many parts as workers; nobody was called.
            ConductorError: Of the first that failed.
        """
        return await self._call("each", method, tuple(self._codec.encode_args((part,)) for part in parts))

    def _client(self, to: Literal["one", "worker", "first"], worker: WorkerId | None = None) -> P:
        async def send(method: str, args: tuple[Any, ...]) -> Any:
            said = await self._call(to, method, (self._codec.encode_args(args),), worker)
            return next(iter(said.values()))

        return client(self._kind, send)

    async def _call(
        self,
        to: Literal["one", "worker", "first", "all", "each"],
        method: str,
        args: tuple[bytes, ...],
        worker: WorkerId | None = None,
    ) -> dict[WorkerId, Any]:
        call = RoleCall(role=self._name, to=to, worker=worker, method=method, args=args)
        said = await self._port.call(call)
        return {name: self._codec.decode_result(method, reply) for name, reply in said.items()}


class Queue(Generic[T]):
    """One end of a queue between roles; ``async for`` takes until it is closed.

    Args:
        port: What carries the items.
        name: Of the queue.
        kind: Of the items: a message, or a built-in type.
    """

    def __init__(self, port: RolesPort, name: str, kind: type[T]) -> None:
        self._port = port
        self._name = name
        self._decoder = msgspec.msgpack.Decoder(kind)

    async def put(self, item: T) -> None:
        """Put an item; see ``RolesPort.put``."""
        await self._port.put(self._name, msgspec.msgpack.encode(item))

    async def close(self) -> None:
        """Let no more come; see ``RolesPort.close``."""
        await self._port.close(self._name)

    async def __aiter__(self) -> AsyncGenerator[T]:
        """Take one item after the other."""
        while (item := await self._port.take(self._name)) is not None:
            yield self._decoder.decode(item)


class Roles:
    """What a worker finds as ``Host.roles``.

    Args:
        port: The controller's side.
        worker: Who it is.
    """

    def __init__(self, port: RolesPort, worker: WorkerId) -> None:
        self._port = port
        self._worker = worker

    def of(self, role: str, kind: type[P]) -> Role[P]:
        """Return the workers of a role, whose methods ``kind`` names."""
        return Role(self._port, role, kind)

    def queue(self, name: str, kind: type[T]) -> Queue[T]:
        """Return a queue of the job's."""
        return Queue(self._port, name, kind)

    async def rendezvous(self) -> Generation:
        """Meet the other workers of one's own role; see ``RolesPort.rendezvous``."""
        return await self._port.rendezvous(self._worker)

    async def barrier(self, generation: Generation) -> None:
        """Wait until all of one's own role are here; see ``RolesPort.gather``."""
        await self._port.gather(Meet(worker=self._worker, generation=generation.number))

    async def broadcast(self, generation: Generation, value: T) -> T:
        """Return the ``value`` of rank 0, of the type of one's own; see ``RolesPort.gather``."""
        encoded = msgspec.msgpack.encode(value) if generation.rank == 0 else b""
        brought = await self._port.gather(Meet(worker=self._worker, generation=generation.number, value=encoded))
        return msgspec.msgpack.decode(brought[0], type=type(value))
