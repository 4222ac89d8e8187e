"""Which nodes are broken, and which are slow: found by trying them in pairs, in two rounds.

A pair that fails says that one of the two is broken, and not which. So whoever was in no pair that did well is tried
again with one that is known to be good. DLRover checks the nodes of a job so before it trains.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median_low

Group = tuple[str, ...]
"""Who is tried together: two, or one that has nobody else."""

Wave = tuple[Group, ...]
"""Groups that are tried at once: nobody is in two of them."""


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
    """What two rounds have shown.

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


def second_round(units: Sequence[str], trials: Sequence[Trial], *, ratio: float) -> tuple[Wave, ...]:
    """Return who is tried again, with whom; nobody, where every pair did well.

    Each is paired with one that is known to be good, in as many waves as that takes. Where nobody is, all are paired
    that were not yet; of two each is tried alone.

    Args:
        units: All of them.
        trials: Of the first round.
        ratio: As for ``judge``.
    """
    times = sorted(one.longest_s for one in trials if not one.failure)
    late_s = ratio * times[len(times) // 4] if times else 0.0  # a slow one makes a pair slow, of an odd number two
    good = {name for one in trials if not one.failure and one.longest_s <= late_s for name in one.group}
    suspects = [name for name in units if name not in good]
    if good:
        partners = [name for name in units if name in good]
        pieces = (suspects[at : at + len(partners)] for at in range(0, len(suspects), len(partners)))
        return tuple(tuple(zip(some, partners, strict=False)) for some in pieces)
    if len(units) <= 2:
        return (tuple((name,) for name in units),)
    met = {frozenset(one.group) for one in trials}
    return tuple(_waves(pair for pair in combinations(units, 2) if frozenset(pair) not in met))


def judge(units: Sequence[str], trials: Sequence[Trial], *, ratio: float) -> Findings:
    """Say who is faulty, and who is slow.

    Faulty is who did well in no trial: exactly those that are broken, where two at least are not. Where all that there
    are, two, do well alone and not together, both are named: it lies between them.

    Args:
        units: All of them.
        trials: Of both rounds.
        ratio: Slow is who took more than this many times the median, in its best trial.
    """
    alone_counts = len(units) == 1 or any(one.failure for one in trials if len(one.group) == 1)
    counted = [one for one in trials if not one.failure and (len(one.group) > 1 or alone_counts)]
    passed = {name: [one.seconds[name] for one in counted if name in one.group] for name in units}
    best = {name: min(times) for name, times in passed.items() if times}
    median_s = median_low(best.values()) if best else 0.0
    return Findings(
        faulty={name: "; ".join(_failures(trials, name)) for name in units if name not in best},
        slow={name: seconds / median_s for name, seconds in best.items() if seconds > ratio * median_s > 0},
        median_s=median_s,
    )


def _failures(trials: Sequence[Trial], name: str) -> Iterator[str]:
    for trial in trials:
        if name in trial.group and trial.failure:
            others = ", ".join(one for one in trial.group if one != name)
            yield f"{f'with {others}' if others else 'alone'}: {trial.failure}"


def _waves(groups: Iterable[Group]) -> Iterator[Wave]:
    """Put groups into waves, each into the first in which nobody of it is yet."""
    waves: list[tuple[set[str], list[Group]]] = []
    for group in groups:
        free = next(((busy, wave) for busy, wave in waves if busy.isdisjoint(group)), None)
        if free is None:
            waves.append((set(group), [group]))
        else:
            free[0].update(group)
            free[1].append(group)
    return (tuple(wave) for _, wave in waves)
