"""Which waits are open, and when anything last moved."""

from conductor.core.waits import Waits


def test_open_waits_are_known_oldest_first_and_forgotten_when_they_end() -> None:
    now = 0.0
    waits = Waits(lambda: now)
    with waits.open("Grader.grade", "L1", 5.0):
        now = 1.0
        with waits.open("Prompts.draw", "", 6.0):
            assert [(wait.name, wait.since) for wait in waits] == [("Grader.grade of L1", 0.0), ("Prompts.draw", 1.0)]
            assert waits.moved == 1.0
            now = 2.0
        assert [wait.name for wait in waits] == ["Grader.grade of L1"]
        assert waits.moved == 2.0
        now = 3.0
    assert (len(waits), waits.moved) == (0, 3.0)
