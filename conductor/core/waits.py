"""The waits that are open: which call of which port, for whom, since when. And when anything last moved."""

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(eq=False, slots=True, kw_only=True)
class Wait:
    """One open wait.

    Attributes:
        call: What is waited for, ``RolloutExecutor.generate``.
        of: The id that it is for, ``L3``; empty where there is none.
        since: When it began, in seconds of the loop's clock.
        deadline_s: How long it may take.
    """

    call: str
    of: str
    since: float
    deadline_s: float

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

    @contextmanager
    def open(self, call: str, of: str, deadline_s: float) -> Generator[None]:
        """Take note of the wait that the block is."""
        self.moved = self._clock()
        wait = Wait(call=call, of=of, since=self.moved, deadline_s=deadline_s)
        self._open[wait] = None
        try:
            yield
        finally:
            del self._open[wait]
            self.moved = self._clock()

    def __len__(self) -> int:
        """Return how many are open."""
        return len(self._open)

    def __iter__(self) -> Iterator[Wait]:
        """Iterate over the open waits, the oldest first."""
        return iter(tuple(self._open))
