"""Where the workers of one role meet: in rounds, each of which begins a generation."""

from collections.abc import Sequence

import anyio
from anyio.lowlevel import checkpoint

from protocols.errors import InvariantError, PeersLost
from protocols.messages import WorkerId
from protocols.roles import Generation, Meet


class _Gathering:
    """Some workers on their way to one point.

    Attributes:
        what: For people.
        came: What each brought that is there, in a box of its own.
        over: All are there, or it has failed.
        failure: Why it failed.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self.came: dict[WorkerId, list[bytes]] = {}
        self.over = anyio.Event()
        self.failure: str | None = None

    def fail(self, why: str) -> None:
        if not self.over.is_set():
            self.failure = why
            self.over.set()


class Meeting:
    """The workers of a role, as they meet.

    A generation ends when one of its workers is lost, leaves a call, does not come in time, or begins another round:
    all that wait in it are released then, and later calls of it are refused.

    Args:
        members: In the order of their ranks.
        patience_s: For how long those that came wait for the others.
    """

    def __init__(self, members: Sequence[WorkerId], *, patience_s: float) -> None:
        self._ranks = {member: rank for rank, member in enumerate(members)}
        self._patience_s = patience_s
        self._number = 0
        self._ended = "nobody has met yet"  # why the generation is over; empty: it is not
        self._round: _Gathering | None = None
        self._points: dict[int, _Gathering] = {}
        self._passed: dict[WorkerId, int] = {}

    async def rendezvous(self, worker: WorkerId) -> Generation:
        """Wait until all have come to this round; see ``RolesPort.rendezvous``."""
        rank = self._rank(worker)
        if not self._ended:
            self._end(f"{worker} began another round")
        if self._round is None:
            self._round = _Gathering(f"round {self._number + 1}")
        here = self._round
        try:
            await self._wait(here, worker, b"")
        finally:
            if here is self._round and here.failure is not None:
                self._round = None
        return Generation(number=self._number, rank=rank, world=len(self._ranks))

    async def gather(self, meet: Meet) -> tuple[bytes, ...]:
        """Wait until all of a generation have come; see ``RolesPort.gather``."""
        self._rank(meet.worker)
        if self._ended or meet.generation != self._number:
            await checkpoint()
            raise PeersLost(f"generation {meet.generation} is over: {self._ended or f'{self._number} has met'}")
        point = self._passed.get(meet.worker, 0)
        self._passed[meet.worker] = point + 1
        here = self._points.setdefault(point, _Gathering(f"call {point} of generation {self._number}"))
        try:
            await self._wait(here, meet.worker, meet.value)
        except BaseException:
            if meet.generation == self._number and not self._ended:
                self._end(f"{meet.worker} left {here.what}")
            raise
        self._points.pop(point, None)
        return tuple(here.came[member][0] for member in self._ranks)

    def lost(self, worker: WorkerId) -> None:
        """Take note that a worker is gone, and release those that wait for it in a generation.

        A round goes on: who takes its place may still come.
        """
        if self._round is not None:
            self._round.came.pop(worker, None)
        if not self._ended:
            self._end(f"{worker} is lost")

    async def _wait(self, here: _Gathering, worker: WorkerId, value: bytes) -> None:
        box = [value]
        here.came[worker] = box
        if len(here.came) == len(self._ranks):
            self._meet(here)
        try:
            with anyio.move_on_after(self._patience_s) as scope:
                await here.over.wait()
                await checkpoint()
            if scope.cancelled_caught:
                here.fail(f"nobody came any more within {self._patience_s:g} s")
        finally:
            if not here.over.is_set() and here.came.get(worker) is box:
                del here.came[worker]
        if here.failure is not None:
            raise PeersLost(f"{here.what} is without {self._missing(here)}: {here.failure}")

    def _meet(self, here: _Gathering) -> None:
        here.over.set()
        if here is self._round:
            self._round = None
            self._number += 1
            self._ended = ""
            self._points.clear()
            self._passed.clear()

    def _end(self, why: str) -> None:
        self._ended = why
        for point in self._points.values():
            point.fail(why)

    def _missing(self, here: _Gathering) -> str:
        away = [f"rank {rank} ({member})" for member, rank in self._ranks.items() if member not in here.came]
        return ", ".join(away) or "nobody"

    def _rank(self, worker: WorkerId) -> int:
        if worker not in self._ranks:
            raise InvariantError(f"{worker} is none of {', '.join(self._ranks)}")
        return self._ranks[worker]
