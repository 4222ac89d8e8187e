"""Whether processes, anyone's children, have ended: the kernel says so, without asking again and again."""

import os
import select
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Self


class Watched:
    """Processes that were alive when the block began; their numbers cannot be mistaken for later ones."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._stack = ExitStack()
        self._descriptors: dict[int, int] = {}
        for pid in pids:
            self._descriptors[pid] = os.pidfd_open(pid)
            self._stack.callback(os.close, self._descriptors[pid])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def left(self, within_s: float) -> set[int]:
        """Return those that have not ended within ``within_s`` seconds from now."""
        poller, left = select.poll(), dict(self._descriptors)
        for descriptor in left.values():
            poller.register(descriptor, select.POLLIN)
        numbers = {descriptor: pid for pid, descriptor in left.items()}
        while left and (ready := poller.poll(within_s * 1000)):
            for descriptor, _ in ready:
                poller.unregister(descriptor)
                del left[numbers[descriptor]]
        return set(left)
