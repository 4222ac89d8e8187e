"""Which waits are open, when anything last moved, and that each is cut when it is due, with few timers."""

import heapq
import itertools
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from conductor.core.waits import Wait, Waits
from protocols.messages import DispatchId, Message, WeightVersion


class HandClock:
    """A clock that is set by hand.

    Attributes:
        calls: How often a timer was asked for.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._timers: list[tuple[float, int, Callable[[], object]]] = []
        self.calls = 0

    def time(self) -> float:
        return self._now

    def call_at(self, when: float, callback: Callable[[], object]) -> None:
        self.calls += 1
        heapq.heappush(self._timers, (when, self.calls, callback))

    def advance(self, to: float) -> None:
        while self._timers and self._timers[0][0] <= to:
            self._now, _, callback = heapq.heappop(self._timers)
            callback()
        self._now = to


def never() -> None:
    raise AssertionError("it was cut")


def test_open_waits_are_known_oldest_first_and_forgotten_when_they_end() -> None:
    clock = HandClock()
    waits = Waits(clock)
    with Wait(waits.limit(5.0), "Grader.grade", "L1", never):
        clock.advance(1.0)
        with Wait(waits.limit(6.0), "Prompts.draw", None, never):
            assert [(wait.name, wait.since) for wait in waits] == [("Grader.grade of L1", 0.0), ("Prompts.draw", 1.0)]
            assert waits.moved == 1.0
            clock.advance(2.0)
            with Wait(waits.limit(5.0), "Grader.grade", "L2", never):
                assert [wait.since for wait in waits] == [0.0, 1.0, 2.0]
        assert [wait.name for wait in waits] == ["Grader.grade of L1"]
        assert waits.moved == 2.0
        clock.advance(3.0)
    assert (len(waits), waits.moved) == (0, 3.0)


class Step(Message, frozen=True, kw_only=True):
    dispatch_id: DispatchId
    version: WeightVersion


def test_a_wait_is_named_after_the_id_that_its_subject_carries() -> None:
    limit = Waits(HandClock()).limit(1.0)
    step = Step(dispatch_id=DispatchId("D4"), version=WeightVersion(3))
    assert [Wait(limit, "call", subject, never).of for subject in (step, "policy.1/", 7, None)] == [
        "D4",
        "policy.1/",
        "",
        "",
    ]


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0.0, 1.0, 3.0]),  # from one call to the next
            st.sampled_from([2.0, 5.0]),  # what it may take
            st.floats(0.0, 12.0),  # what it takes
        ),
        max_size=40,
    )
)
def test_what_is_due_is_cut_then_and_nothing_else_is(calls: list[tuple[float, float, float]]) -> None:
    """I17: every wait is bounded. A timer a call was a third of what a group cost."""
    clock = HandClock()
    waits, cut, expected = Waits(clock), dict[int, float](), dict[int, float]()
    open_waits: dict[int, Wait] = {}
    ends: list[tuple[float, int]] = []

    def end_until(now: float) -> None:
        while ends and ends[0][0] <= now:
            at, number = heapq.heappop(ends)
            clock.advance(at)
            open_waits.pop(number).__exit__()
        clock.advance(now)

    for number, (pause, limit, takes) in enumerate(calls):
        end_until(now := clock.time() + pause)
        wait = Wait(waits.limit(limit), "call", str(number), lambda number=number: cut.setdefault(number, clock.time()))
        wait.__enter__()
        open_waits[number] = wait
        heapq.heappush(ends, (now + takes, number))
        if takes >= limit:
            expected[number] = now + limit
    end_until(clock.time() + 20.0)
    assert cut == expected
    assert len(waits) == 0


def test_calls_that_follow_one_another_share_a_timer() -> None:
    clock = HandClock()
    waits = Waits(clock)
    for now in itertools.takewhile(lambda now: now < 60.0, itertools.count()):
        clock.advance(now)
        with Wait(waits.limit(30.0), "call", None, never):
            clock.advance(now + 0.5)
    assert clock.calls == 2
