"""How late the event loop wakes a task that sleeps: what the loop's own work costs everyone who waits."""

import math

import anyio

_SHORTEST_S = 1e-5
_GROWTH = 1.1
_BUCKETS = 200


class LagMonitor:
    """Measures the lag of the event loop it runs on.

    Lags are counted in 200 buckets whose edges grow by a tenth, from 10 us to over 1,000 s, so memory
    stays the same however long nobody takes the numbers.
    """

    def __init__(self) -> None:
        self._counts = [0] * _BUCKETS
        self._max_s = 0.0

    async def run(self, interval_s: float) -> None:
        """Measure every ``interval_s`` seconds (above 0) until cancelled."""
        while True:
            due = anyio.current_time() + interval_s
            await anyio.sleep_until(due)
            self._add(anyio.current_time() - due)

    def take(self) -> tuple[float, float]:
        """Return the 99th percentile and the maximum since the last call, in seconds; zeros without a measurement.

        The percentile is at most a tenth too high, or 10 us.
        """
        rank = math.ceil(0.99 * sum(self._counts))
        p99_s, seen = 0.0, 0
        for bucket, count in enumerate(self._counts):
            seen += count
            if rank and seen >= rank:
                p99_s = min(_SHORTEST_S * _GROWTH**bucket, self._max_s)
                break
        max_s = self._max_s
        self._counts, self._max_s = [0] * _BUCKETS, 0.0
        return p99_s, max_s

    def _add(self, lag_s: float) -> None:
        above = max(lag_s, _SHORTEST_S) / _SHORTEST_S
        bucket = math.ceil(math.log(above, _GROWTH))
        self._counts[min(bucket, _BUCKETS - 1)] += 1
        self._max_s = max(self._max_s, lag_s)
