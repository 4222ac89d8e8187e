"""Two paired rounds find who is broken and who is slow, however many they are."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.core.node_check import Findings, Trial, Wave, first_round, judge, search, second_round

RATIO = 2.0


def names(count: int) -> list[str]:
    return [f"n{number}" for number in range(count)]


def tried(waves: Sequence[Wave], broken: set[str], seconds: Mapping[str, float]) -> list[Trial]:
    """Try every group: it fails where one of it is broken, and both wait for the slower one when they exchange."""
    trials: list[Trial] = []
    for wave in waves:
        inside = [name for group in wave for name in group]
        assert len(inside) == len(set(inside)), "nobody can be tried with two at once"
        for group in wave:
            if broken.intersection(group):
                trials.append(Trial(group=group, seconds={}, failure="it hung"))
            else:
                slowest = max(seconds.get(name, 1.0) for name in group)
                own = {name: seconds.get(name, 1.0) + slowest for name in group}
                trials.append(Trial(group=group, seconds=own))
    return trials


def found(count: int, broken: set[str], seconds: Mapping[str, float] | None = None) -> Findings:
    units, seconds = names(count), seconds or {}
    trials = tried(first_round(units), broken, seconds)
    for wave in search(units, tuple(trials)):
        trials += tried([wave], broken, seconds)
        if not all(trial.failure for trial in trials):
            break
    trials += tried(second_round(units, trials, ratio=RATIO), broken, seconds)
    return judge(units, trials, ratio=RATIO)


@given(st.integers(1, 40), st.data())
def test_any_single_broken_one_is_found_and_nobody_else(count: int, data: st.DataObject) -> None:
    (broken,) = data.draw(st.sets(st.sampled_from(names(count)), min_size=1, max_size=1))
    assert set(found(count, {broken}).faulty) == {broken}


@given(st.integers(3, 24), st.data())
def test_any_number_is_found_as_long_as_two_are_sound(count: int, data: st.DataObject) -> None:
    broken = data.draw(st.sets(st.sampled_from(names(count)), max_size=count - 2))
    findings = found(count, broken)
    assert set(findings.faulty) == broken
    assert not findings.slow


@given(st.integers(4, 40), st.data())
def test_stragglers_are_found_by_their_ratio_to_the_median(count: int, data: st.DataObject) -> None:
    """As many as a fourth: each has then a pair that it did not slow down to be compared with."""
    slow = data.draw(st.sets(st.sampled_from(names(count)), max_size=count // 4))
    findings = found(count, set(), dict.fromkeys(slow, 7.0))
    assert not findings.faulty
    assert findings.slow == dict.fromkeys(slow, pytest.approx(7.0))
    assert findings.median_s == pytest.approx(2.0)


def test_slow_ones_are_found_where_they_slow_down_most_pairs() -> None:
    """Of nine, two that are slow have three of the five pairs, for one of them is tried twice."""
    assert set(found(9, set(), {"n0": 7.0, "n2": 7.0}).slow) == {"n0", "n2"}


@given(st.integers(8, 40), st.data())
def test_who_is_broken_does_not_hide_who_is_slow(count: int, data: st.DataObject) -> None:
    broken, slow = data.draw(st.permutations(names(count)))[:2]
    findings = found(count, {broken}, {slow: 9.0})
    assert (set(findings.faulty), set(findings.slow)) == ({broken}, {slow})


def test_where_all_do_well_there_is_no_second_round() -> None:
    units = names(5)
    first = first_round(units)
    assert first == ((("n0", "n1"), ("n2", "n3")), (("n4", "n0"),)), "of an odd number one is tried twice"
    assert second_round(units, tried(first, set(), {}), ratio=RATIO) == ()


def test_suspects_are_paired_with_good_ones_in_as_many_waves_as_it_takes() -> None:
    units = names(6)
    trials = tried(first_round(units), {"n0", "n2"}, {})
    waves = second_round(units, trials, ratio=RATIO)
    assert waves == ((("n0", "n4"), ("n1", "n5")), (("n2", "n4"), ("n3", "n5")))


@given(st.integers(0, 40))
def test_where_no_pair_did_well_every_other_pair_is_tried_once_in_as_few_waves_as_that_takes(count: int) -> None:
    """400 nodes took 510 waves, which took seconds to be thought of while the event loop stood."""
    units = names(count)
    first = first_round(units)
    waves = list(search(units, tried(first, set(units), {})))
    met = [frozenset(group) for wave in (*first, *waves) for group in wave if len(group) > 1]
    assert len(met) == len(set(met)) == count * (count - 1) // 2
    assert len(waves) <= count
    assert all(len({name for group in wave for name in group}) == 2 * len(wave) for wave in waves)


def test_where_a_pair_did_well_none_is_searched_for() -> None:
    units = names(4)
    assert list(search(units, tried(first_round(units), {"n0"}, {}))) == []


def test_who_failed_often_is_told_of_in_few_words() -> None:
    assert found(8, set(names(8))).faulty["n0"].endswith("; and 4 times more")
    assert found(4, set(names(4))).faulty["n0"].count("it hung") == 3
    assert "more" not in found(4, set(names(4))).faulty["n0"]


def test_one_that_is_alone_is_tried_alone() -> None:
    assert first_round(names(1)) == ((("n0",),),)
    assert not found(1, set()).faulty
    assert found(1, {"n0"}).faulty == {"n0": "alone: it hung; alone: it hung"}


def test_of_two_each_is_tried_alone() -> None:
    assert set(found(2, {"n1"}).faulty) == {"n1"}
    assert set(found(2, {"n0", "n1"}).faulty) == {"n0", "n1"}


def test_where_two_do_well_alone_and_not_together_both_are_named() -> None:
    """A cable is on no node: to blame neither would let the run begin."""
    units = names(2)
    trials = [Trial(group=("n0", "n1"), seconds={}, failure="it hung")]
    trials += tried(second_round(units, trials, ratio=RATIO), set(), {})
    assert judge(units, trials, ratio=RATIO).faulty == {"n0": "with n1: it hung", "n1": "with n0: it hung"}


def test_of_two_the_slower_one_is_the_straggler() -> None:
    trial = Trial(group=("n0", "n1"), seconds={"n0": 1.0, "n1": 3.0})
    assert judge(names(2), [trial], ratio=RATIO).slow == {"n1": 3.0}


def test_nobody_is_nobody() -> None:
    assert first_round([]) == ()
    assert judge([], [], ratio=RATIO) == Findings(faulty={}, slow={}, median_s=0.0)


def pairs(*seconds: float) -> list[Trial]:
    """Return trials of pairs, both of which took so long."""
    units = names(2 * len(seconds))
    return [
        Trial(group=group, seconds=dict.fromkeys(group, took))
        for group, took in zip(first_round(units)[0], seconds, strict=True)
    ]


@pytest.mark.parametrize(("took_s", "again"), [(2.0, 0), (2.1, 1)])
def test_slow_is_who_takes_more_than_so_many_times_the_median(took_s: float, again: int) -> None:
    units, trials = names(6), pairs(1.0, 1.0, took_s)
    assert len(second_round(units, trials, ratio=RATIO)) == again
    assert set(judge(units, trials, ratio=RATIO).slow) == (set(units[4:]) if again else set())


def test_where_nothing_takes_any_time_nobody_is_slow() -> None:
    """A clock that is too coarse is no verdict, and nothing is divided by it."""
    assert judge(names(6), pairs(0.0, 0.0, 1.0), ratio=RATIO).slow == {}
