"""How many requests a server is given at once, by what it says of its queue and cache."""

from typing import NamedTuple

FULL = 0.95
"""A cache with more in use than this is about to push requests out, and compute them anew."""

_SHRINK = 0.75
_STEPS = 32


class Load(NamedTuple):
    """What a server works on, whoever sent it.

    Attributes:
        running: Requests that it computes.
        waiting: Requests that it has queued.
        cache: Part of its cache in use, 0 to 1.
    """

    running: int
    waiting: int
    cache: float

    @property
    def requests(self) -> int:
        """All that it has."""
        return self.running + self.waiting


class Window:
    """The most requests that a server may have at once: less by a quarter where they queue there, else a little more.

    It begins at the ceiling: a server that is given too much only queues it. What waits on this side instead can still
    be dropped for nothing, and is given to the server in the order in which it came.

    Args:
        ceiling: Never more than this; at least 1.

    Attributes:
        size: How many, from 1 to the ceiling.
    """

    def __init__(self, ceiling: int) -> None:
        self.size = ceiling
        self._ceiling = ceiling
        self._queued = False

    def observe(self, load: Load, sent: int) -> None:
        """Take note of a report.

        One that tells of a queue alone says little: what has just come waits for a moment. The second in a row counts.
        A window that is not used up does not grow: nobody knows what the server would make of more.

        Args:
            load: The server's.
            sent: How many requests it has of ours.
        """
        crowded = load.waiting > 0 or load.cache > FULL
        if crowded and self._queued:
            runs = load.running if load.cache <= FULL else 1  # what it computes at once, it can
            self.size = min(self.size, max(1, runs, int(min(self.size, sent) * _SHRINK)))
        elif not crowded and sent >= self.size:
            self.size = min(self._ceiling, self.size + max(1, self._ceiling // _STEPS))
        self._queued = crowded
