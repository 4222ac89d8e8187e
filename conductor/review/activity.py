"""Who worked when: engines, graders, trainer, publisher and checkpointer, in equal bins of time."""

from collections import Counter, defaultdict
from collections.abc import Iterator

from conductor.review.chronicle import Attempt, Chronicle
from protocols.messages import Message

BINS = 240
_MOST_ENGINES = 64
_UNNAMED = "engines"


class Row(Message, frozen=True, kw_only=True):
    """One lane.

    Attributes:
        name: Of it.
        unit: What its numbers count.
        values: For each bin the mean number at work, from 0.
    """

    name: str
    unit: str
    values: tuple[float, ...]


class Activity(Message, frozen=True, kw_only=True):
    """All lanes.

    Attributes:
        bin_s: Seconds of one bin; the first begins with the run.
        rows: Engines first.
        left_out: Engines that are not shown.
    """

    bin_s: float
    rows: tuple[Row, ...]
    left_out: int = 0


class _Bins:
    """Adds up how much was at work."""

    def __init__(self, bin_s: float) -> None:
        self.sums = [0.0] * BINS
        self._bin_s = bin_s

    def add(self, began_s: float, ended_s: float, weight: float = 1.0) -> None:
        first, last = int(began_s / self._bin_s), min(BINS - 1, int(ended_s / self._bin_s))
        for number in range(first, last + 1):
            inside = min(ended_s, (number + 1) * self._bin_s) - max(began_s, number * self._bin_s)
            self.sums[number] += weight * max(0.0, inside) / self._bin_s


def activity(told: Chronicle) -> Activity:
    """Return who worked when. A sample counts for its engine from when its group was sent out until it was finished."""
    timed = [attempt for attempt in told.all_attempts() if attempt.began_s is not None]
    end_s = max([*_ends(timed), *(step.closed_s for step in told.steps)], default=0.0)
    if end_s <= 0.0:
        return Activity(bin_s=0.0, rows=())
    bin_s = end_s / BINS
    engines: defaultdict[str, _Bins] = defaultdict(lambda: _Bins(bin_s))
    graders, trainer, publisher, checkpointer = (_Bins(bin_s) for _ in range(4))
    for attempt in timed:
        _add_attempt(attempt, engines, graders)
    for step in told.steps:
        trainer.add(max(0.0, step.train_from_s), step.trained_s)
    for bins, spans in ((publisher, told.publishes), (checkpointer, told.checkpoints)):
        for span in spans:
            bins.add(span.began_s, min(span.ended_s, end_s))
    names = sorted(engines, key=lambda name: (len(name), name))
    lanes = [(name, "samples in work", engines[name]) for name in names[:_MOST_ENGINES]]
    lanes += [
        ("graders", "groups in work", graders),
        ("trainer", "share of the time", trainer),
        ("publisher", "share of the time", publisher),
        ("checkpoints", "share of the time", checkpointer),
    ]
    rows = tuple(Row(name=name, unit=unit, values=tuple(bins.sums)) for name, unit, bins in lanes)
    return Activity(bin_s=bin_s, rows=rows, left_out=max(0, len(names) - _MOST_ENGINES))


def _ends(attempts: list[Attempt]) -> Iterator[float]:
    return (attempt.graded_s or attempt.began_s or 0.0 for attempt in attempts)


def _add_attempt(attempt: Attempt, engines: defaultdict[str, _Bins], graders: _Bins) -> None:
    if attempt.began_s is None or attempt.finished_s is None or attempt.graded_s is None:
        return
    samples = () if attempt.receipt is None else attempt.receipt.samples
    for engine, count in Counter(sample.engine or _UNNAMED for sample in samples).items():
        engines[engine].add(attempt.began_s, attempt.finished_s, count)
    graders.add(attempt.finished_s, attempt.graded_s)
