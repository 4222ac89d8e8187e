"""Calling a user's function, and classing what comes of it."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.graders._reward import Reward, Task, grade_of
from protocols.grading import Grade, GradeFault

TASK = Task(
    prompt="p", fields={"answer": 4, "level": "easy", "prompt": "a field", "completion": "a field"}, completions=["c"]
)


def called(function: Callable[..., Any]) -> list[Any]:
    """Return what a reward is called with, for one that keeps it."""
    seen: list[Any] = []
    Reward(function(seen)).grade(TASK, 0)
    return seen


def test_only_what_the_function_takes_is_handed_over() -> None:
    def plain(seen: list[Any]) -> Callable[..., float]:
        def reward(completion, answer, *, missing=3):
            seen.extend([completion, answer, missing])
            return 0.0

        return reward

    def greedy(seen: list[Any]) -> Callable[..., float]:
        def reward(prompt, completion, **fields):
            seen.extend([prompt, completion, fields])
            return 0.0

        return reward

    assert called(plain) == ["c", 4, 3]
    assert called(greedy) == ["p", "c", {"answer": 4, "level": "easy"}], "the run's own win over fields of their names"


def test_a_field_that_the_prompt_does_not_have_is_named() -> None:
    def reward(prompt, completion, solution):
        return 0.0

    fault = Reward(reward).grade(TASK, 0)
    assert isinstance(fault, GradeFault)
    assert fault.kind == "raised"
    assert "'solution'" in fault.detail
    assert "answer, completion, level, prompt" in fault.detail


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda prompt, completion, /: 0.0, "'prompt' by position"),
        (lambda prompt: 0.0, "'completion'"),
        (lambda completion: 0.0, None),
        (lambda **fields: 0.0, None),
        (lambda prompt, completion, answer: 0.0, None),
    ],
)
def test_what_can_never_be_called_is_found_before(function: Callable[..., float], why: str | None) -> None:
    found = Reward(function).impossible()
    assert found is None if why is None else why in str(found)


def test_async_functions_are_told_apart() -> None:
    async def reward(completion):
        return 0.0

    class Judge:
        async def __call__(self, completion):
            return 0.0

    class Plain:
        def __call__(self, completion):
            return 0.0

    assert Reward(reward).is_async
    assert Reward(Judge()).is_async
    assert not Reward(Plain()).is_async
    assert not Reward(lambda completion: 0.0).is_async


@given(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(),
        st.binary(),
        st.complex_numbers(),
        st.fractions(),
        st.decimals(),
        st.lists(st.floats()),
        st.dictionaries(st.text(), st.floats()),
        st.tuples(st.floats(), st.dictionaries(st.text(), st.floats())),
    )
)
def test_a_grade_is_finite_or_it_is_no_grade(value: object) -> None:
    """I61: a reward that is no number must not reach the advantages."""
    grade = grade_of(value)
    if isinstance(grade, Grade):
        numbers = [grade.reward, *grade.parts.values()]
        assert all(type(number) is float and abs(number) < float("inf") for number in numbers)
    else:
        assert grade.detail


def test_numbers_of_other_libraries_count() -> None:
    class Scalar:
        def __float__(self) -> float:
            return 0.5

    class Vector:
        def __float__(self) -> float:
            raise ValueError("more than one element")

    assert grade_of(Scalar()) == Grade(reward=0.5)
    assert grade_of(Fraction(1, 4)) == Grade(reward=0.25)
    fault = grade_of(Vector())
    assert isinstance(fault, GradeFault)
    assert fault.kind == "wrong_type"


def test_hostile_values_are_shown_all_the_same() -> None:
    class Hostile:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    class HostileError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    def reward(completion):
        raise HostileError

    assert isinstance(grade_of(Hostile()), GradeFault)
    assert isinstance(Reward(reward).grade(TASK, 0), GradeFault)
    odd = grade_of({"reward": 1.0, "\udcff": 2.0})
    assert isinstance(odd, Grade)
    assert [name.encode() for name in odd.parts] == [b"?"], "it must fit into a message"


def test_a_long_detail_keeps_its_end() -> None:
    def reward(completion):
        raise ValueError("x" * 100_000 + "the point")

    fault = Reward(reward).grade(TASK, 0)
    assert isinstance(fault, GradeFault)
    assert len(fault.detail) <= 2000
    assert fault.detail.endswith("the point")


def test_the_detail_starts_at_the_users_own_frame() -> None:
    def reward(completion):
        return 1 / 0

    fault = Reward(reward).grade(TASK, 0)
    assert isinstance(fault, GradeFault)
    assert "graders/_reward.py" not in fault.detail
    assert "test_reward.py" in fault.detail
