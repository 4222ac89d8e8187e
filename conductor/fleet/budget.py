"""The time that the phases of a start share."""

from collections.abc import Generator
from contextlib import contextmanager

import anyio

from protocols.aio import deadline


class Budget:
    """Counts from when it is made. What one phase leaves is there for the next ones.

    Args:
        seconds: For all phases together.
    """

    def __init__(self, seconds: float) -> None:
        self._until = anyio.current_time() + seconds

    @property
    def left_s(self) -> float:
        """What is left, in seconds; never less than none."""
        return max(0.0, self._until - anyio.current_time())

    @contextmanager
    def phase(self, name: str) -> Generator[None]:
        """Bound a phase by what is left.

        Raises:
            DeadlineExceeded: Nothing was left before it ended; it has its name.
        """
        with deadline(name, self.left_s):
            yield
