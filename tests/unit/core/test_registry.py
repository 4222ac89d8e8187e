"""Which checkpoints stay, whatever the order of reports, evaluations and crashes."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from conductor.core.registry import CheckpointRegistry, Keeping
from conductor.core.tally import Tally
from protocols.ledger import (
    CheckpointBegun,
    Checkpointed,
    CheckpointsReleased,
    Compacted,
    Cut,
    Evaluated,
    LedgerEvent,
    Resumed,
    RunStarted,
)
from protocols.messages import WeightVersion
from protocols.prompts import SourceState
from protocols.tracking import StepRecord

ORIGIN = RunStarted(
    run_id="r", job={}, version=WeightVersion(0), prompts=SourceState(position=0, seed=0), fingerprint=""
)
METRIC = "eval/reward/mean"


def registry(*events: LedgerEvent) -> CheckpointRegistry:
    made = CheckpointRegistry()
    for event in (ORIGIN, *events):
        made.apply(event)
    return made


def written(version: int, *kept: int, held: Sequence[int] = ()) -> Checkpointed:
    return Checkpointed(version=v(version), kept=versions(*kept, version), held=versions(*held))


def summary(cuts: tuple[Cut, ...], held: tuple[WeightVersion, ...]) -> Compacted:
    return Compacted(
        admitted=0, samples=0, position=None, dispatched=0, settled=0, tally=Tally().message(),
        open=(), recent=(), dispatches=(), cuts=cuts, held=held,
    )  # fmt: skip


def evaluated(version: int, worth: float, metric: str = METRIC) -> Evaluated:
    return Evaluated(record=StepRecord(step=version, metrics={metric: worth}))


def v(version: int) -> WeightVersion:
    return WeightVersion(version)


def versions(*numbers: int) -> tuple[WeightVersion, ...]:
    return tuple(map(WeightVersion, numbers))


def test_the_best_are_ranked_by_the_metric_and_of_equal_ones_the_newer_comes_first() -> None:
    found = registry(
        *(evaluated(number, worth) for number, worth in ((1, 0.5), (2, 0.9), (3, 0.5))), written(3, 1, 2, held=())
    )
    assert found.best(Keeping(last=1, best=2)) == versions(2, 3)
    assert found.best(Keeping(last=1, best=2, mode="min")) == versions(3, 1)
    assert found.best(Keeping(last=1, best=2, metric="eval/length/mean")) == ()


def test_what_is_no_more_among_the_best_goes_and_what_awaits_its_evaluation_stays() -> None:
    found = registry(evaluated(1, 0.1), evaluated(2, 0.2), written(3, 1, 2))
    kept = found.decide(Keeping(last=1, best=1), pending=lambda version: version == 4, written=v(5))
    assert (kept.last, kept.held) == (versions(5), versions(2))
    kept = found.decide(Keeping(last=1, best=1), pending=lambda version: version == 3, written=v(5))
    assert (kept.last, kept.held) == (versions(5), versions(2, 3))


def test_nothing_but_the_last_is_kept_where_the_job_says_nothing_else() -> None:
    found = registry(evaluated(1, 9.0), written(3, 1, 2))
    kept = found.decide(Keeping(last=2), pending=lambda _: True, written=v(5))
    assert (kept.last, kept.held) == (versions(3, 5), ())


def test_a_checkpoint_that_was_removed_by_hand_is_not_counted_as_kept() -> None:
    """Somebody who removes a damaged one must not find that a good one went with it."""
    found = registry(written(1), written(2, 1))
    kept = found.decide(Keeping(last=2), pending=lambda _: False, written=v(3), there=versions(1, 3))
    assert kept.last == versions(1, 3)


def test_what_was_removed_by_hand_is_not_held() -> None:
    found = registry(evaluated(1, 0.9), written(3, held=(1,)))
    kept = found.decide(Keeping(last=1, best=1), pending=lambda _: False, written=v(4), there=versions(3, 4))
    assert (kept.last, kept.held) == (versions(4), ())


def test_what_is_released_is_gone_and_nothing_else() -> None:
    found = registry(written(3, held=(1, 2)), CheckpointsReleased(versions=versions(1)))
    assert (found.last, found.held, found.gone) == (versions(3), versions(2), {v(1)})


def test_another_checkpoint_is_being_written_until_it_is_whole_itself() -> None:
    found = registry(CheckpointBegun(version=v(3)), written(2))
    assert found.begun == 3
    found.apply(written(3, 2))
    assert found.begun is None


def test_a_summary_of_the_record_knows_what_is_whole_and_what_is_being_written() -> None:
    """The beginning of a run counts as a place to go back to, and is no checkpoint."""
    cuts = tuple(
        Cut(version=v(number), begun=begun, complete=complete, admitted=0, settled=0, tally=Tally().message())
        for number, begun, complete in ((0, False, True), (2, False, True), (3, True, False), (4, False, False))
    )
    found = registry(evaluated(1, 0.5), summary(cuts, versions(1)))
    assert (found.last, found.held, found.begun) == (versions(2), versions(1), 3)
    assert found.best(Keeping(last=1, best=1)) == versions(1)


def test_a_resume_keeps_what_is_known_of_where_it_goes_back_to_and_before() -> None:
    events = (evaluated(1, 0.5), evaluated(2, 0.9), evaluated(3, 0.1), written(3, 2, held=(1,)))
    found = registry(*events, Resumed(version=v(2)))
    assert (found.last, found.held) == (versions(2), versions(1))
    assert found.best(Keeping(last=1, best=3)) == versions(2, 1)


def test_what_a_resume_has_gone_back_behind_is_unknown_again() -> None:
    """The version is made again, of other weights: neither its worth nor its removal says anything of those."""
    found = registry(written(1), written(2, 1), evaluated(3, 0.9), written(3, 2), Resumed(version=v(1)))
    assert (found.last, found.held, found.gone) == (versions(1), (), set())
    assert found.evaluations == {}


def test_a_whole_checkpoint_whose_report_a_crash_cut_off_is_known_by_the_resume_from_it() -> None:
    found = registry(written(1), CheckpointBegun(version=v(2)), Resumed(version=v(2)))
    assert (found.last, found.begun) == (versions(1, 2), None)


def test_an_evaluation_may_be_recorded_before_the_checkpoint_of_its_version() -> None:
    """While an older one is still being written; the last one of a run is not announced."""
    found = registry(evaluated(5, 0.9), written(4), written(5, 4))
    assert found.best(Keeping(last=1, best=1)) == versions(5)


@given(st.lists(st.integers(1, 5), unique=True, min_size=1))
def test_the_same_report_twice_changes_nothing(numbers: list[int]) -> None:
    reports = [written(number, *sorted(numbers)[:index]) for index, number in enumerate(sorted(numbers))]
    once, twice = registry(*reports), registry(*reports, reports[-1])
    assert (once.last, once.held, once.gone) == (twice.last, twice.held, twice.gone)


class Checkpoints(RuleBasedStateMachine):
    """A run that trains, saves, evaluates and is killed, with a disk; and a second opinion on what must be there."""

    def __init__(self) -> None:
        super().__init__()
        self.keeping = Keeping(last=2, best=2)
        self.events: list[LedgerEvent] = [ORIGIN]
        self.registry = registry()
        self.version = 0
        self.evaluated_to = 0
        self.disk: set[int] = set()
        self.saved: set[int] = set()
        self.worth: dict[int, float] = {}

    def write(self, event: LedgerEvent) -> None:
        self.registry.apply(event)
        self.events.append(event)

    def pending(self, version: int) -> bool:
        """Each checkpoint is evaluated once, in order; one that is overtaken never is."""
        return version > self.evaluated_to

    @rule()
    def save(self) -> None:
        self.version += 1
        self.write(CheckpointBegun(version=v(self.version)))
        self.disk.add(self.version)
        self.report()

    @rule()
    def save_and_die_before_the_report(self) -> None:
        self.version += 1
        self.write(CheckpointBegun(version=v(self.version)))
        self.disk.add(self.version)
        self.saved.add(self.version)
        self.write(Resumed(version=v(self.version)))

    def report(self) -> None:
        self.saved.add(self.version)
        kept = self.registry.decide(
            self.keeping, pending=self.pending, written=v(self.version), there=versions(*self.disk)
        )
        self.write(Checkpointed(version=v(self.version), kept=kept.last, held=kept.held))
        self.sweep()

    def sweep(self) -> None:
        self.disk -= self.registry.gone

    @rule(ahead=st.integers(1, 3), tenths=st.integers(0, 5))
    def evaluate(self, ahead: int, tenths: int) -> None:
        version = self.evaluated_to + ahead
        if version > self.version:
            return
        self.evaluated_to = version
        self.worth[version] = tenths / 10
        self.write(evaluated(version, tenths / 10))
        kept = self.registry.decide(self.keeping, pending=self.pending)
        self.write(CheckpointsReleased(versions=tuple(one for one in self.registry.held if one not in kept.held)))
        self.sweep()

    @rule()
    @precondition(lambda self: self.disk)
    def die_and_resume(self) -> None:
        newest = max(self.disk & set(self.registry.last))
        self.write(Resumed(version=v(newest)))
        self.version = newest
        self.evaluated_to = min(self.evaluated_to, newest)

    @rule()
    @precondition(lambda self: self.disk)
    def sum_up(self) -> None:
        """The record begins anew behind the evaluations that count."""
        told = [evaluated(version, worth) for version, worth in self.worth.items()]
        cuts = tuple(
            Cut(version=version, complete=True, admitted=0, settled=0, tally=Tally().message())
            for version in (v(0), *self.registry.last)
        )
        self.events = [ORIGIN, *told, summary(cuts, self.registry.held)]

    @invariant()
    def the_latest_whole_one_is_there(self) -> None:
        if self.saved:
            assert max(self.saved) in self.disk
            assert max(self.registry.last) == max(self.saved)

    @invariant()
    def the_best_of_all_that_were_evaluated_are_there_and_none_besides(self) -> None:
        """Of every checkpoint that the run ever wrote, not of those that are left."""
        ranked = sorted(
            ((worth, version) for version, worth in self.worth.items() if version in self.saved), reverse=True
        )
        best = [version for _, version in ranked[: self.keeping.best]]
        assert list(self.registry.best(self.keeping)) == best
        pending = {version for version in self.saved if self.pending(version)}
        newest = sorted(self.registry.last)[-self.keeping.last :]
        assert {*best, *pending, *newest} <= self.disk
        assert set(self.registry.held) <= {*best, *pending}

    @invariant()
    def a_replay_of_the_record_knows_the_same(self) -> None:
        again = registry(*self.events[1:])
        assert (again.last, again.held) == (self.registry.last, self.registry.held)
        assert again.best(self.keeping) == self.registry.best(self.keeping)
        assert set(again.whole) == self.disk


TestCheckpoints = Checkpoints.TestCase
