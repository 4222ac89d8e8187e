"""A name in the job becomes an adapter, or a problem that says what to do."""

import sys
from pathlib import Path

import pytest

from protocols.adapters import ROOMS, UnknownAdapter, known_kinds, load_object, resolve
from protocols.messages import Message


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A room of trackers of the test's own."""
    folder = tmp_path / f"room_{tmp_path.name}"
    folder.mkdir()
    (folder / "__init__.py").touch()
    for name in ("jsonl", "console", "_hidden", "pool"):
        (folder / f"{name}.py").write_text(f"NAME = {name!r}\n")
    (folder / "cloud.py").write_text("import a_module_that_nobody_has.inside\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(ROOMS, "tracker", folder.name)
    return folder


def test_kinds_are_the_modules_of_the_room(room: Path) -> None:
    assert known_kinds("tracker") == ("cloud", "console", "jsonl")


def test_a_short_name_is_a_module_of_the_room(room: Path) -> None:
    assert vars(resolve("tracker", "jsonl"))["NAME"] == "jsonl"


def test_an_unknown_kind_suggests_the_nearest(room: Path) -> None:
    with pytest.raises(UnknownAdapter) as caught:
        resolve("tracker", "jsnol")
    problem = caught.value.problem
    assert (problem.field, problem.value) == ("tracker.kind", "'jsnol'")
    assert problem.mend == "did you mean 'jsonl'?"


def test_a_kind_that_resembles_none_lists_them_all(room: Path) -> None:
    with pytest.raises(UnknownAdapter) as caught:
        resolve("tracker", "zzzzzz")
    assert "cloud, console, jsonl" in caught.value.problem.mend
    assert "module:name" in caught.value.problem.mend


@pytest.mark.parametrize("kind", ["_hidden", "pool", "..jsonl", ""])
def test_what_is_no_kind_is_not_imported(room: Path, kind: str) -> None:
    with pytest.raises(UnknownAdapter):
        resolve("tracker", kind)


def test_a_missing_module_names_the_extra(room: Path) -> None:
    with pytest.raises(UnknownAdapter) as caught:
        resolve("tracker", "cloud")
    problem = caught.value.problem
    assert "a_module_that_nobody_has" in problem.why
    assert problem.mend == "pip install 'conductor-rl[cloud]'"
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_every_room_can_be_looked_into() -> None:
    kinds = {section: known_kinds(section) for section in ROOMS}
    assert "inproc" in kinds["backend"]
    rooms = {room.removeprefix("backends.") for room in ROOMS.values()}
    assert not rooms.intersection(kinds["backend"])


def test_shipped_adapters_have_the_three_names() -> None:
    for section in ROOMS:
        for kind in known_kinds(section):
            adapter = resolve(section, kind)
            assert issubclass(adapter.Config, Message), (section, kind)
            assert callable(adapter.check), (section, kind)
            assert section == "model" or callable(adapter.open), (section, kind)  # a model is no port


def test_a_module_and_a_nested_name(tmp_path: Path) -> None:
    assert load_object("pathlib:Path.home", str(tmp_path)) == Path.home


def test_a_file_next_to_the_job(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("class Adapter:\n    Config = int\n")
    assert resolve("tracker", "mine.py:Adapter", str(tmp_path)).Config is int


def test_two_jobs_may_both_have_a_reward(tmp_path: Path) -> None:
    """A module imported under its bare name would make the second job use the first one's reward."""
    for job, value in (("first", 1.0), ("second", 2.0)):
        (tmp_path / job).mkdir()
        (tmp_path / job / "reward.py").write_text(f"def reward(prompt, completion):\n    return {value}\n")
    rewards = [load_object("reward.py:reward", str(tmp_path / job)) for job in ("first", "second")]
    assert [reward("p", "c") for reward in rewards] == [1.0, 2.0]
    assert "reward" not in sys.modules


def test_a_file_is_imported_once(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("class Adapter: pass\n")
    first = load_object("mine.py:Adapter", str(tmp_path))
    assert load_object(str(tmp_path / "mine.py") + ":Adapter", "/") is first


def test_a_file_that_fails_is_imported_anew_once_it_is_mended(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        load_object("mine.py:x", str(tmp_path))
    path.write_text("x = 'mended by hand'\n")
    assert load_object("mine.py:x", str(tmp_path)) == "mended by hand"


@pytest.mark.parametrize("kind", ["nowhere:x", "missing.py:x", "pathlib:NoSuchName", "mine.py:absent"])
def test_what_cannot_be_imported_is_a_problem_of_the_job(tmp_path: Path, kind: str) -> None:
    (tmp_path / "mine.py").touch()
    with pytest.raises(UnknownAdapter) as caught:
        resolve("tracker", kind, str(tmp_path))
    assert caught.value.problem.field == "tracker.kind"
    assert "cannot be imported" in caught.value.problem.why
