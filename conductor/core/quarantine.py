"""Which failure domains are set aside for a while, since workers were lost there again and again."""

from collections import Counter, defaultdict, deque
from collections.abc import Mapping

LOSSES = 3
"""Losses within ``WINDOW_S`` after which a domain is set aside."""

WINDOW_S = 600.0
FIRST_S = 300.0
LONGEST_S = 3600.0


class Quarantine:
    """Counts losses by failure domain, whichever workers they hit; ``now`` is any clock that goes on.

    A domain that is set aside again, within the longest time for which one can be, is so for twice as long as before.
    """

    def __init__(self) -> None:
        self._losses: defaultdict[str, deque[float]] = defaultdict(deque)
        self._until: dict[str, float] = {}
        self._times: Counter[str] = Counter()

    def lose(self, domain: str, *, now: float, preempted: bool = False) -> None:
        """Count a loss; one in a domain that is set aside already is part of what it is set aside for.

        Where a place was taken away the others of its domain are next, so the domain is set aside at once.
        """
        if now < self._until.get(domain, now):
            return
        losses = self._losses[domain]
        losses.append(now)
        while losses[0] < now - WINDOW_S:
            losses.popleft()
        if len(losses) >= LOSSES or preempted:
            self.set_aside(domain, now=now)

    def aside(self, now: float) -> frozenset[str]:
        """Return the domains that get no workers now."""
        return frozenset(self.left(now))

    def left(self, now: float) -> dict[str, float]:
        """Return for how many seconds more each domain is set aside that is."""
        return {domain: until - now for domain, until in self._until.items() if now < until}

    def recall(self, left: Mapping[str, float], *, now: float) -> None:
        """Set domains aside that were in an earlier life of the run, for what is left; not those known since."""
        self._until = {domain: now + seconds for domain, seconds in left.items()} | self._until

    def set_aside(self, domain: str, *, now: float) -> None:
        """Set a domain aside, for whatever reason; one that is already begins anew."""
        self._losses[domain].clear()
        if now >= self._until.get(domain, now) + LONGEST_S:
            self._times[domain] = 0
        self._until[domain] = now + min(LONGEST_S, FIRST_S * 2 ** self._times[domain])
        self._times[domain] += 1
