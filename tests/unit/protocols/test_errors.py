"""The whole failure tree crosses a port unharmed, and each class says how the command exits."""

import inspect
import typing
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols import errors
from protocols.errors import ConductorError, ConfigError, Problem, Transient, UserError
from protocols.wire import decode_error, encode_error
from tests.support.arbitrary import values


def _tree(root: type[ConductorError]) -> Iterator[type[ConductorError]]:
    yield root
    for child in root.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from _tree(child)


CLASSES = list(_tree(ConductorError))


def _argument(kind: Any) -> st.SearchStrategy[Any]:
    return st.lists(values(Problem), max_size=3) if kind == Sequence[Problem] else values(kind)


def _instances(kind: type[ConductorError]) -> st.SearchStrategy[ConductorError]:
    constructor = kind.__init__
    hints = typing.get_type_hints(constructor)
    parameters = list(inspect.signature(constructor).parameters.values())[1:]
    by_name = {one.name: _argument(hints[one.name]) for one in parameters if one.kind is one.KEYWORD_ONLY}
    in_order = [_argument(hints[one.name]) for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
    return st.builds(kind, *in_order, **by_name)


@given(data=st.data())
@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_crosses_with_all_of_its_facts(kind: type[ConductorError], data: st.DataObject) -> None:
    error = data.draw(_instances(kind))
    arrived = decode_error(encode_error(error))
    assert type(arrived) is kind
    assert vars(arrived) == vars(error)
    assert str(arrived) == str(error)
    assert arrived.args == error.args
    assert arrived.exit_code == error.exit_code


@pytest.mark.parametrize("kind", CLASSES)
def test_the_docstring_draws_the_tree(kind: type[ConductorError]) -> None:
    assert f"{kind.__name__}" in (errors.__doc__ or "").replace(":", " ").split()


EXITS = {
    "ConductorError": 1,
    "DataFault": 1,
    "PromptTooLong": 1,
    "BadPrompt": 1,
    "UserError": 2,
    "ConfigError": 2,
    "Transient": 3,
    "WorkerLost": 3,
    "PayloadLost": 3,
    "PeersLost": 3,
    "SnapshotLost": 3,
    "EngineBusy": 3,
    "EngineStale": 3,
    "DeadlineExceeded": 3,
    "Aborted": 3,
    "Stopped": 130,
    "PortFailed": 3,
    "StateLost": 3,
    "Infeasible": 3,
    "Stalled": 3,
    "BudgetExhausted": 3,
    "QueueClosed": 3,
    "InvariantError": 4,
    "ForeignCancellation": 4,
    "CorruptLedger": 4,
}


def test_every_class_has_its_exit_code() -> None:
    assert {kind.__name__: kind.exit_code for kind in CLASSES} == EXITS


def test_data_faults_name_different_reasons() -> None:
    kinds = list(_tree(errors.DataFault))
    assert len({kind.reason for kind in kinds if issubclass(kind, errors.DataFault)}) == len(kinds)


def test_notes_cross_too() -> None:
    """W07: what went wrong while cleaning up is attached, and the verdict stands."""
    error = UserError("no such file")
    error.add_note("and the lock could not be removed")
    assert decode_error(encode_error(error)).__notes__ == ["and the lock could not be removed"]


def test_an_unknown_class_arrives_as_the_nearest_one_that_is_known() -> None:
    """A user's own transient failure is retried on every backend; a peer of a later version may know more errors."""

    class FromTheFuture(Transient):
        def __init__(self, *, engine: str) -> None:
            super().__init__(f"engine {engine} is tired")
            self.engine = engine

    arrived = decode_error(encode_error(FromTheFuture(engine="e0")))
    assert type(arrived) is Transient
    assert str(arrived) == "engine e0 is tired"
    assert vars(arrived)["engine"] == "e0"


def test_a_job_with_many_problems_shows_them_all() -> None:
    problems = [Problem(field=f"train.{name}", value="'x'", why="not a number", mend="write one") for name in "ab"]
    assert str(ConfigError(problems)).splitlines() == [
        "the job has 2 problems:",
        "  train.a = 'x': not a number; write one",
        "  train.b = 'x': not a number; write one",
    ]
    missing = Problem(field="steps", value=None, why="missing", mend="add it")
    assert str(ConfigError([missing])).splitlines() == ["the job has 1 problem:", "  steps: missing; add it"]
