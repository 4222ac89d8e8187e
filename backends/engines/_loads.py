"""Who has least to do, found without asking everybody."""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator
from typing import Generic, TypeVar

M = TypeVar("M", bound=Hashable)


class Loads(Generic[M]):
    """Members by their load.

    What a request costs must not grow with the number of engines: a change takes constant time, and finding the first
    member one that grows with the number of different loads.

    Args:
        members: All that there are; none has anything to do yet.
    """

    def __init__(self, members: Iterable[M]) -> None:
        self._at: dict[int, OrderedDict[M, None]] = {0: OrderedDict.fromkeys(members)}  # a dict is slow at its front
        self._load = dict.fromkeys(self._at[0], 0)

    def add(self, member: M) -> None:
        """Take note of a member that has nothing to do yet."""
        self._at.setdefault(0, OrderedDict())[member] = None
        self._load[member] = 0

    def remove(self, member: M) -> None:
        """Forget a member."""
        load = self._load.pop(member)
        del self._at[load][member]
        if not self._at[load]:
            del self._at[load]

    def put(self, member: M, load: int) -> None:
        """Take note of what a member has to do now."""
        before = self._load[member]
        equals = self._at[before]
        del equals[member]
        if not equals:
            del self._at[before]
        self._at.setdefault(load, OrderedDict())[member] = None
        self._load[member] = load

    def __contains__(self, member: M) -> bool:
        """Return whether a member is one of them."""
        return member in self._load

    def __iter__(self) -> Iterator[M]:
        """Iterate over the members, the least loaded first; of equals the one first whose load changed longest ago."""
        for load in sorted(self._at):
            yield from self._at[load]
