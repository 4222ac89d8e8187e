"""The waits that are open: which call of which port, for whom, since when. And when anything last moved."""

import heapq
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Protocol


class Clock(Protocol):
    """What an event loop has."""

    def time(self) -> float:
        """Return seconds of the loop's clock."""
        ...

    def call_at(self, when: float, callback: Callable[[], object], /) -> object:
        """Call ``callback`` when it is so late."""
        ...


class Wait:
    """One wait, open while the block runs that it is entered for.

    It is made for every call of a port, and so costs as little as it can: who it is for is found when somebody asks.

    Args:
        limit: How long it may take.
        call: What is waited for, ``RolloutExecutor.generate``.
        subject: Carries the id that it is for, or is it; None where there is none.
        cut: What ends it when it has taken too long.

    Attributes:
        since: When it began, in seconds of the loop's clock.
    """

    __slots__ = ("_limit", "_subject", "call", "cut", "since")

    def __init__(self, limit: "Limit", call: str, subject: object, cut: Callable[[], object]) -> None:
        self._limit = limit
        self._subject = subject
        self.call = call
        self.cut = cut
        self.since = 0.0

    def __enter__(self) -> None:
        self.since = self._limit.begin(self)

    def __exit__(self, *_: object) -> None:
        self._limit.end(self)

    @property
    def of(self) -> str:
        """The id that it is for, ``L3``; empty where there is none."""
        for field in ("lease_id", "dispatch_id", "worker_id", "version"):
            if (found := getattr(self._subject, field, None)) is not None:
                return f"v{found}" if field == "version" else str(found)
        return self._subject if isinstance(self._subject, str) else ""

    @property
    def name(self) -> str:
        """The call and whom it is for."""
        return f"{self.call} of {self.of}" if self.of else self.call

    @property
    def deadline_s(self) -> float:
        """How long it may take."""
        return self._limit.seconds


class Limit:
    """The open waits that may take equally long: the oldest of them is due first, so one timer does for all.

    Attributes:
        seconds: How long each may take.
    """

    def __init__(self, waits: "Waits", seconds: float) -> None:
        self._waits = waits
        self._open: dict[Wait, None] = {}
        self._armed = False
        self.seconds = seconds

    def begin(self, wait: Wait) -> float:
        """Take note of a wait that begins; returns the time."""
        now = self._waits.move()
        self._open[wait] = None
        if not self._armed:
            self._arm(now + self.seconds)
        return now

    def end(self, wait: Wait) -> None:
        """Take note that a wait ended, however it did."""
        self._waits.move()
        del self._open[wait]

    def _arm(self, due: float) -> None:
        self._armed = True
        self._waits.clock.call_at(due, self._cut_overdue)

    def _cut_overdue(self) -> None:
        self._armed = False
        now = self._waits.clock.time()
        for wait in self._open:
            if (due := wait.since + self.seconds) > now:
                self._arm(due)
                return
            wait.cut()

    def __len__(self) -> int:
        """Return how many are open."""
        return len(self._open)

    def __iter__(self) -> Iterator[Wait]:
        """Iterate over the open ones, the oldest first."""
        return iter(tuple(self._open))


class Waits:
    """Every open wait of a run.

    Every transition is written through a port, so a run in which no call begins or ends does not progress.

    Args:
        clock: The loop, or what stands for it.

    Attributes:
        moved: When a wait last began or ended.
    """

    def __init__(self, clock: Clock) -> None:
        self._limits: dict[float, Limit] = {}
        self.clock = clock
        self.moved = clock.time()

    def limit(self, seconds: float) -> Limit:
        """Return what holds the waits that may take so long."""
        if seconds not in self._limits:
            self._limits[seconds] = Limit(self, seconds)
        return self._limits[seconds]

    def move(self) -> float:
        """Take note that something moves; returns the time."""
        self.moved = now = self.clock.time()
        return now

    def __len__(self) -> int:
        """Return how many are open."""
        return sum(map(len, self._limits.values()))

    def __iter__(self) -> Iterator[Wait]:
        """Iterate over the open waits, the oldest first."""
        return heapq.merge(*self._limits.values(), key=attrgetter("since"))
