"""The waits that are open: which call of which port, for whom, since when. And when anything last moved."""

from collections.abc import Callable, Iterator


class Wait:
    """One wait, open while the block runs that it is entered for.

    It is made for every call of a port, and so costs as little as it can.

    Args:
        waits: Where it is known while it is open.
        call: What is waited for, ``RolloutExecutor.generate``.
        of: The id that it is for, ``L3``; empty where there is none.
        deadline_s: How long it may take.

    Attributes:
        since: When it began, in seconds of the loop's clock.
    """

    __slots__ = ("_waits", "call", "deadline_s", "of", "since")

    def __init__(self, waits: "Waits", call: str, of: str, deadline_s: float) -> None:
        self._waits = waits
        self.call = call
        self.of = of
        self.deadline_s = deadline_s
        self.since = 0.0

    def __enter__(self) -> None:
        self.since = self._waits.begin(self)

    def __exit__(self, *_: object) -> None:
        self._waits.end(self)

    @property
    def name(self) -> str:
        """The call and whom it is for."""
        return f"{self.call} of {self.of}" if self.of else self.call


class Waits:
    """Every open wait of a run, the oldest first.

    Every transition is written through a port, so a run in which no call begins or ends does not progress.

    Args:
        clock: Returns seconds of the loop's clock.

    Attributes:
        moved: When a wait last began or ended.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._open: dict[Wait, None] = {}
        self._clock = clock
        self.moved = clock()

    def open(self, call: str, of: str, deadline_s: float) -> Wait:
        """Return a wait to enter a block with."""
        return Wait(self, call, of, deadline_s)

    def begin(self, wait: Wait) -> float:
        """Take note of a wait that begins; returns the time."""
        self._open[wait] = None
        self.moved = self._clock()
        return self.moved

    def end(self, wait: Wait) -> None:
        """Take note that a wait ended, however it did."""
        del self._open[wait]
        self.moved = self._clock()

    def __len__(self) -> int:
        """Return how many are open."""
        return len(self._open)

    def __iter__(self) -> Iterator[Wait]:
        """Iterate over the open waits, the oldest first."""
        return iter(tuple(self._open))
