"""How long to wait before something is tried again that failed."""

import random

FIRST_S = 0.5
LONGEST_S = 30.0
_DOUBLINGS = 16  # more change nothing, and would overflow one day


def pause_s(failures: int, who: str, *, longest_s: float = LONGEST_S) -> float:
    """Return the seconds to wait after so many failures in a row.

    It doubles from ``FIRST_S`` to ``longest_s``, less up to a quarter. What is taken off is drawn from the arguments
    alone: two who failed together do not come back together, and a replay waits for as long.

    Args:
        failures: In a row, from 1.
        who: Whoever waits.
        longest_s: Where the pause stops to grow.
    """
    pause = min(longest_s, FIRST_S * 2 ** min(failures - 1, _DOUBLINGS))
    return pause * random.Random(f"{who}/{failures}").uniform(0.75, 1.0)
