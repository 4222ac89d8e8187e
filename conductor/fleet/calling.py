"""Calls to the workers of one role: to all of them, one, the first, or to each with an argument of its own."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from anyio.lowlevel import checkpoint

from conductor.fleet.together import all_or_first
from protocols.errors import ConductorError, InvariantError
from protocols.messages import WorkerId

Call = Callable[[WorkerId, str, tuple[Any, ...]], Awaitable[Any]]
"""Carries one call to one worker, as ``LauncherPort.call`` does."""


class Calls:
    """What a group is asked to do. A call has no deadline of its own: the caller owns the clock.

    Cancelling any of these cancels what it had called.

    Args:
        members: In the order of their ranks.
        call: What carries a call.
    """

    def __init__(self, members: Sequence[WorkerId], call: Call) -> None:
        self._members = tuple(members)
        self._call = call

    @property
    def members(self) -> tuple[WorkerId, ...]:
        """The workers in the order of their ranks."""
        return self._members

    async def all(self, method: str, *args: Any) -> dict[WorkerId, Any]:
        """Call every worker at once with the same arguments.

        Returns:
            What each said, in the order of their ranks.

        Raises:
            ConductorError: Of the first that failed, with its name as a note; the calls to the others are cancelled.
        """
        return await self._at_once(method, dict.fromkeys(self._members, args))

    async def scattered(self, method: str, parts: Sequence[Any]) -> dict[WorkerId, Any]:
        """Call every worker at once, the n-th of their ranks with the n-th of ``parts`` as its one argument.

        Returns:
            What each said, in the order of their ranks.

        Raises:
            InvariantError: There are not as many parts as workers; nobody was called.
            ConductorError: As ``all``.
        """
        if len(parts) != len(self._members):
            await checkpoint()
            raise InvariantError(f"{method} is scattered in {len(parts)} parts over {len(self._members)} workers")
        return await self._at_once(method, {member: (part,) for member, part in zip(self._members, parts, strict=True)})

    async def one(self, member: WorkerId, method: str, *args: Any) -> Any:
        """Call one worker.

        Raises:
            InvariantError: It is none of the group.
            ConductorError: What it raised, or ``WorkerLost``.
        """
        if member not in self._members:
            await checkpoint()
            raise InvariantError(f"{member} is none of {', '.join(self._members)}")
        return await self._call(member, method, args)

    async def first(self, method: str, *args: Any) -> Any:
        """Call the worker of rank 0; see ``one``."""
        return await self._call(self._members[0], method, args)

    async def _at_once(self, method: str, args: Mapping[WorkerId, tuple[Any, ...]]) -> dict[WorkerId, Any]:
        said: dict[WorkerId, Any] = {}

        async def ask(member: WorkerId) -> None:
            try:
                said[member] = await self._call(member, method, args[member])
            except ConductorError as exc:
                exc.add_note(f"{method} at {member}")
                raise

        await all_or_first({f"{method} at {member}": partial(ask, member) for member in args})
        return {member: said[member] for member in args}
