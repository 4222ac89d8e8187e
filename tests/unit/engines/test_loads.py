"""Who has least to do: as a search through all members would find it."""

from hypothesis import given
from hypothesis import strategies as st

from backends.engines._loads import Loads


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=60))
def test_the_members_come_by_their_loads_and_equals_in_turn(changes: list[tuple[int, int]]) -> None:
    """The pool sent every request by looking at all engines: at 10,000 of them that was most of what it cost."""
    loads = Loads(range(5))
    expected = {member: (0, member - 5) for member in range(5)}  # the load, and when it came to it
    for now, (member, load) in enumerate(changes):
        loads.put(member, load)
        expected[member] = (load, now)
        assert list(loads) == sorted(expected, key=expected.__getitem__)


def test_equals_take_turns() -> None:
    """Else one engine would do all the work of a run that lends out one group at a time."""
    loads, taken = Loads("abc"), ""
    for _ in range(6):
        member = next(iter(loads))
        taken += member
        loads.put(member, 8)
        loads.put(member, 0)
    assert taken == "abcabc"
