"""Every problem of a message at once, each with its field, value, reason and mend."""

import string
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from conductor.config import RunConfig
from conductor.decoding import decode, decode_fields
from protocols.messages import Message
from protocols.sections import Section


class Inner(Message, frozen=True, kw_only=True):
    depth: Annotated[int, Meta(ge=1, le=8)]
    note: str = ""


class Job(Message, frozen=True, kw_only=True):
    rate: Annotated[float, Meta(gt=0, lt=1)] = 0.5
    count: Annotated[int, Meta(ge=1)] = 1
    on: bool = False
    mode: Literal["slow", "fast"] = "slow"
    name: Annotated[str, Meta(pattern="^[a-z]+$")] = "a"
    word: Annotated[str, Meta(min_length=1)] = "a"
    betas: tuple[float, float] = (0.9, 0.99)
    stops: tuple[str, ...] = ()
    few: Annotated[list[int], Meta(min_length=1, max_length=2)] = msgspec.field(default_factory=lambda: [1])
    seen: frozenset[int] = frozenset()
    table: dict[str, int] = {}
    inner: Inner | None = None
    either: int | str = 0
    any_of: int | tuple[int, ...] | None = None
    free: Any = None
    engine: Section = Section(kind="torch")
    reward: Section | None = None
    trackers: tuple[Section, ...] = ()


def texts(raw: dict[str, Any]) -> list[str]:
    value, problems = decode(Job, raw)
    assert (value is None) == bool(problems)
    return [str(problem) for problem in problems]


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ({"rate": 1.5}, "rate = 1.5: is too large; give a number above 0 and below 1"),
        ({"rate": 0}, "rate = 0: is too small; give a number above 0 and below 1"),
        ({"rate": float("nan")}, "rate = NaN: is not a finite number; give a number above 0 and below 1"),
        ({"rate": float("inf")}, "rate = Infinity: is not a finite number; give a number above 0 and below 1"),
        ({"rate": 10**400}, f"rate = 1{'0' * 58}…: is not a finite number; give a number above 0 and below 1"),
        ({"rate": True}, "rate = true: is true or false; give a number above 0 and below 1"),
        (
            {"rate": "1e-3"},
            "rate = '1e-3': is text; give a number above 0 and below 1, without quotes (in YAML: 1.0e-3)",
        ),
        ({"count": 0}, "count = 0: is too small; give a whole number of at least 1"),
        ({"count": 1.0}, "count = 1.0: is a number; give a whole number of at least 1"),
        ({"count": False}, "count = false: is true or false; give a whole number of at least 1"),
        ({"count": "many"}, "count = 'many': is text; give a whole number of at least 1"),
        ({"count": None}, "count = null: is empty; give a whole number of at least 1"),
        ({"count": []}, "count = []: is a list; give a whole number of at least 1"),
        ({"on": 1}, "on = 1: is a whole number; give true or false"),
        ({"mode": "fats"}, "mode = 'fats': no such choice; give one of 'fast', 'slow'"),
        ({"mode": 3}, "mode = 3: no such choice; give one of 'fast', 'slow'"),
        ({"name": "A b"}, "name = 'A b': has characters that are not allowed; give text that matches ^[a-z]+$"),
        ({"name": {}}, "name = {}: is a table; give text that matches ^[a-z]+$"),
        ({"word": ""}, "word = '': is empty; give text of at least 1 characters"),
        ({"betas": [0.9]}, "betas = [0.9]: has 1 items; give a list of 2: a number, a number"),
        ({"betas": 0.9}, "betas = 0.9: is a number; give a list of 2: a number, a number"),
        ({"betas": [0.9, "x"]}, "betas[1] = 'x': is text; give a number"),
        ({"stops": "\n"}, "stops = '\\n': is text; give a list, each text"),
        ({"stops": ["a", 1]}, "stops[1] = 1: is a whole number; give text"),
        ({"few": []}, "few = []: is empty; give a list of at least 1 items, each a whole number"),
        ({"few": [1, 2, 3]}, "few = [1, 2, 3]: is too long; give a list of at least 1 items, each a whole number"),
        ({"table": [1]}, "table = [1]: is a list; give a table"),
        ({"table": {"a": "x"}}, "table.a = 'x': is text; give a whole number"),
        ({"inner": 3}, "inner = 3: is a whole number; give a table"),
        ({"inner": {}}, "inner.depth: is missing; give a whole number of at least 1 and at most 8"),
        ({"inner": {"depth": 9}}, "inner.depth = 9: is too large; give a whole number of at least 1 and at most 8"),
        ({"either": 1.5}, "either = 1.5: is a number; give a whole number or text"),
        ({"any_of": [1, "x"]}, "any_of[1] = 'x': is text; give a whole number"),
        ({"cuont": 3}, "cuont = 3: unknown key; did you mean 'count'?"),
        ({"inner": {"depth": 1, "nite": ""}}, "inner.nite = '': unknown key; did you mean 'note'?"),
        ({"inner": {"depth": 1, "q": 1}}, "inner.q = 1: unknown key; known are depth, note"),
        (
            {"engine": 3},
            "engine = 3: is a whole number; give the name of an adapter, or a table with 'kind' and its options",
        ),
        (
            {"engine": ""},
            "engine = '': is empty text; give the name of an adapter, or a table with 'kind' and its options",
        ),
        ({"engine": {"kind": 3}}, "engine.kind = 3: is a whole number; name an adapter"),
        ({"reward": {"function": "f"}}, "reward.kind: is missing; name an adapter"),
        ({"trackers": [{"path": "x"}]}, "trackers[0].kind: is missing; name an adapter"),
        ({"trackers": {"kind": "jsonl"}}, None),
    ],
)
def test_a_problem_names_field_value_reason_and_mend(raw: dict[str, Any], text: str | None) -> None:
    if text is None:
        section = "the name of an adapter, or a table with 'kind' and its options"
        text = f'trackers = {{"kind": "jsonl"}}: is a table; give a list, each {section}'
    assert texts(raw) == [text]


def test_all_problems_come_at_once_in_the_order_of_the_fields_and_strangers_last() -> None:
    found = texts({"zzz": 1, "inner": {"depth": 0, "x": 1}, "count": 0, "rate": "high"})
    assert [text.split(" = ")[0] for text in found] == ["rate", "count", "inner.depth", "inner.x", "zzz"]


def test_a_right_job_becomes_the_message_that_code_would_build() -> None:
    raw = {
        "rate": 0.25,
        "betas": [0, 1],
        "stops": ["x"],
        "seen": [3],
        "table": {"a": 1},
        "inner": {"depth": 2},
        "any_of": [4],
        "free": {"x": [1]},
        "engine": {"slots": 4},
        "reward": "function",
        "trackers": ["jsonl", {"kind": "csv", "path": "p"}],
    }
    value, problems = decode(Job, raw)
    assert problems == []
    assert value == Job(
        rate=0.25,
        betas=(0.0, 1.0),
        stops=("x",),
        seen=frozenset({3}),
        table={"a": 1},
        inner=Inner(depth=2),
        any_of=(4,),
        free={"x": [1]},
        engine=Section(kind="torch", options={"slots": 4}),
        reward=Section(kind="function"),
        trackers=(Section(kind="jsonl"), Section(kind="csv", options={"path": "p"})),
    )


def test_a_kind_of_its_own_replaces_the_default_one() -> None:
    value, _ = decode(Job, {"engine": {"kind": "vllm"}})
    assert value is not None
    assert value.engine == Section(kind="vllm")


def test_a_misspelt_required_key_is_one_mistake_not_two() -> None:
    """Someone who corrects the first message must not find that the second was about the same word."""
    _, problems = decode(Inner, {"dephts": 3}, "inner")
    assert [str(problem) for problem in problems] == ["inner.dephts = 3: unknown key; did you mean 'depth'?"]


def test_the_fields_that_are_right_are_returned_with_their_defaults_but_none_that_seems_misspelt() -> None:
    fields, problems = decode_fields(Job, {"count": 3, "rate": "x", "mod": "fast"})
    assert len(problems) == 2
    assert (fields["count"], fields["name"]) == (3, "a")
    assert "rate" not in fields
    assert "mode" not in fields


def test_defaults_that_can_change_are_not_shared() -> None:
    first, _ = decode_fields(Job, {})
    second, _ = decode_fields(Job, {})
    assert first["table"] is not second["table"]


def test_messages_that_are_built_already_are_checked_like_the_rest() -> None:
    """Constructors check nothing, and a job may be built in code."""
    assert texts({"inner": Inner(depth=0)}) == [
        "inner.depth = 0: is too small; give a whole number of at least 1 and at most 8"
    ]


def test_a_long_value_is_cut() -> None:
    (text,) = texts({"count": "x" * 500})
    assert len(text) < 120


def test_a_type_that_no_job_file_holds_is_the_adapters_own_mistake() -> None:
    class Odd(Message, frozen=True, kw_only=True):
        data: bytes = b""

    with pytest.raises(TypeError, match="cannot hold a bytes"):
        decode(Odd, {"data": "x"})


_scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.dates()
_values = st.recursive(
    _scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(string.ascii_lowercase, max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
_keys = st.sampled_from([field.name for field in msgspec.structs.fields(RunConfig)]) | st.text(max_size=8)


@given(st.dictionaries(_keys, _values, max_size=6))
def test_whatever_stands_in_a_job_it_is_decoded_or_refused_in_words(raw: dict[str, Any]) -> None:
    value, problems = decode(RunConfig, raw)
    assert (value is None) == bool(problems)
    for problem in problems:
        assert problem.field
        assert problem.why
        assert problem.mend


@given(st.builds(Inner, depth=st.integers(-3, 12), note=st.text(max_size=3)))
def test_what_decode_accepts_is_what_msgspec_accepts(inner: Inner) -> None:
    raw = msgspec.to_builtins(inner)
    try:
        converted = msgspec.convert(raw, Inner)
    except msgspec.ValidationError:
        converted = None
    assert decode(Inner, raw)[0] == converted
