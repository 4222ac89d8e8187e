"""What no controller can beat: seconds of a step, from the work in it and the slots that do it."""

import heapq
from collections.abc import Iterable, Sequence


def makespan(work_s: Iterable[float], slots: int) -> float:
    """Return when the last of some samples is done that begin one after the other as slots get free.

    Args:
        work_s: Seconds of each sample, in order.
        slots: Samples that run at once.
    """
    free = [0.0] * slots
    end = 0.0
    for seconds in work_s:
        done = heapq.heappop(free) + seconds
        heapq.heappush(free, done)
        end = max(end, done)
    return end


def synchronous(work_s: Sequence[float], *, slots: int, train_s: float, publish_s: float) -> float:
    """Return the seconds of a step of a loop that generates, then trains, then publishes.

    Args:
        work_s: Seconds of each sample of the batch in a full engine.
        slots: Samples that run at once, over all engines.
        train_s: Seconds of a train step.
        publish_s: Seconds of loading its weights.
    """
    return makespan(work_s, slots) + train_s + publish_s


def one_step_off(work_s: Sequence[float], *, slots: int, train_s: float, publish_s: float) -> float:
    """Return the seconds of a step where one batch is generated while the batch before it is trained."""
    return max(makespan(work_s, slots), train_s) + publish_s


def ideal(work_s: Sequence[float], *, slots: int, train_s: float, publish_s: float) -> float:
    """Return the least seconds of a step: no slot is ever free, or the trainer never waits.

    Engines stand still while they load weights and the trainer need not, so publishing is part of generating.
    """
    return max(sum(work_s) / slots + publish_s, train_s)
