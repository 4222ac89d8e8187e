"""Which nodes are broken, and which are slow: found by trying them in pairs, in two rounds.

A pair that fails says that one of the two is broken, and not which. So whoever was in no pair that did well is tried
again with one that is known to be good; where nobody is, one is searched for before. DLRover checks the nodes of a job
so before it trains.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low

Group = tuple[str, ...]
"""Who is tried together: two, or one that has nobody else."""

Wave = tuple[Group, ...]
"""Groups that are tried at once: nobody is in two of them."""

_TOLD = 3


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What came of trying a group.

    Attributes:
        seconds: How long each of it took, by name; empty where it failed.
        failure: Why it failed; empty: it did not.
    """

    group: Group
    seconds: Mapping[str, float]
    failure: str = ""

    @property
    def longest_s(self) -> float:
        """How long the slower one took."""
        return max(self.seconds.values(), default=0.0)


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What the trials have shown.

    Attributes:
        faulty: Who failed whenever it was tried, and how.
        slow: Who took long whenever it was tried, as a multiple of the median.
        median_s: The median of what those that are not faulty took, each in its best trial, in seconds.
    """

    faulty: Mapping[str, str]
    slow: Mapping[str, float]
    median_s: float


def first_round(units: Sequence[str]) -> tuple[Wave, ...]:
    """Return the pairs of the first round: each with its neighbour.

    Of an odd number the last one is paired with the first, when that is free again. One that has nobody is alone.
    """
    pairs = [tuple(units[at : at + 2]) for at in range(0, len(units), 2)]
    if len(units) % 2 == 0 or len(units) == 1:
        return (tuple(pairs),) if pairs else ()
    return (tuple(pairs[:-1]), ((units[-1], units[0]),))


def search(units: Sequence[str], trials: Sequence[Trial]) -> Iterator[Wave]:
    """Return who is tried until some pair does well, where none of the first round did: all pairs that it had not.

    Of two there is no other pair.

    Args:
        units: All of them.
        trials: Of the first round.
    """
    if all(one.failure for one in trials):
        met = {frozenset(one.group) for one in trials}
        for wave in _round_robin(units):
            if left := tuple(pair for pair in wave if frozenset(pair) not in met):
                yield left


def second_round(units: Sequence[str], trials: Sequence[Trial], *, ratio: float) -> tuple[Wave, ...]:
    """Return who is tried again, with whom; nobody, where every pair did well.

    Each is paired with one that is known to be good, in as many waves as that takes. Where nobody is, of two each is
    tried alone.

    Args:
        units: All of them.
        trials: Those before.
        ratio: As for ``judge``.
    """
    times = sorted(one.longest_s for one in trials if not one.failure)
    late_s = ratio * times[len(times) // 4] if times else 0.0  # a slow one makes a pair slow, of an odd number two
    good = {name for one in trials if not one.failure and one.longest_s <= late_s for name in one.group}
    if not good:
        return (tuple((name,) for name in units),) if len(units) <= 2 else ()
    suspects = [name for name in units if name not in good]
    partners = [name for name in units if name in good]
    pieces = (suspects[at : at + len(partners)] for at in range(0, len(suspects), len(partners)))
    return tuple(tuple(zip(some, partners, strict=False)) for some in pieces)


def judge(units: Sequence[str], trials: Sequence[Trial], *, ratio: float) -> Findings:
    """Say who is faulty, and who is slow; whoever failed often is told of with the first times.

    Faulty is who did well in no trial: exactly those that are broken, where two at least are not. Where all that there
    are, two, do well alone and not together, both are named: it lies between them.

    Args:
        units: All of them.
        trials: All.
        ratio: Slow is who took more than this many times the median, in its best trial.
    """
    alone_counts = len(units) == 1 or any(one.failure for one in trials if len(one.group) == 1)
    counted = [one for one in trials if not one.failure and (len(one.group) > 1 or alone_counts)]
    passed = {name: [one.seconds[name] for one in counted if name in one.group] for name in units}
    best = {name: min(times) for name, times in passed.items() if times}
    median_s = median_low(best.values()) if best else 0.0
    failures = _failures(trials)
    return Findings(
        faulty={name: _told(failures[name]) for name in units if name not in best},
        slow={name: seconds / median_s for name, seconds in best.items() if seconds > ratio * median_s > 0},
        median_s=median_s,
    )


def _failures(trials: Sequence[Trial]) -> dict[str, list[str]]:
    """Return of each in which of its trials it failed, and how."""
    failures: defaultdict[str, list[str]] = defaultdict(list)
    for trial in trials:
        for name in trial.group if trial.failure else ():
            others = ", ".join(one for one in trial.group if one != name)
            failures[name].append(f"{f'with {others}' if others else 'alone'}: {trial.failure}")
    return failures


def _told(failures: Sequence[str]) -> str:
    more = len(failures) - _TOLD
    return "; ".join(failures[:_TOLD]) + (f"; and {more} times more" if more > 0 else "")


def _round_robin(units: Sequence[str]) -> Iterator[Wave]:
    """Return every pair once, in waves: one stays, and the others go around it; of an odd number one sits out."""
    ring = [*units, *[""] * (len(units) % 2)]
    for _ in ring[1:]:
        pairs = zip(ring, reversed(ring), strict=True)
        yield tuple(pair for pair, _ in zip(pairs, range(len(ring) // 2), strict=False) if all(pair))
        ring[1:] = [ring[-1], *ring[1:-1]]
