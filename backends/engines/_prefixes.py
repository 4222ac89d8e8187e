"""What was aborted, so that an abort may overtake its request."""

from collections import Counter, OrderedDict


class AbortedPrefixes:
    """The latest ``limit`` prefixes; the oldest are forgotten first.

    Prefixes name attempts (``registration/lease/attempt/``), and an attempt's number is never reused, so a
    remembered prefix harms nobody; a request is overtaken by milliseconds, so thousands are plenty.
    A look-up costs one probe for each length that a remembered prefix has: a few.
    """

    def __init__(self, limit: int = 65_536) -> None:
        self._limit = limit
        self._prefixes: OrderedDict[str, None] = OrderedDict()
        self._lengths: Counter[int] = Counter()

    def add(self, prefix: str) -> None:
        """Remember ``prefix``; one that is known already becomes the latest."""
        if prefix in self._prefixes:
            self._prefixes.move_to_end(prefix)
            return
        self._prefixes[prefix] = None
        self._lengths[len(prefix)] += 1
        if len(self._prefixes) > self._limit:
            oldest, _ = self._prefixes.popitem(last=False)
            self._lengths[len(oldest)] -= 1
            if not self._lengths[len(oldest)]:
                del self._lengths[len(oldest)]

    def match(self, request_id: str) -> str | None:
        """Return a remembered prefix of ``request_id``, if there is one."""
        for length in self._lengths:
            if request_id[:length] in self._prefixes:
                return request_id[:length]
        return None
