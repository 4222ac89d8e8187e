"""docs/incidents.md is complete: every incident is there, and every test that it names exists and names it back."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "incidents.md").read_text()

_ID = re.compile(r"\b[IW]\d\d\b")

IDS = frozenset(
    _ID.findall("""
    I01 I02 I03 I04 I07 I09 I10 I11 I12 I13 I14 I15 I17 I18 I20
    I21 I22 I23 I24 I26 I27 I29 I30 I31 I32 I33 I34
    I36 I37 I38 I40 I42 I44 I46 I47 I49 I51 I52 I55 I56 I57
    I58 I59 I61 I62 I64 I65 I68 I70 I73 I74 I75
    W01 W02 W03 W04 W05 W06 W07 W08 W09 W10 W11 W12 W13 W14 W15 W16 W17 W18 W19 W20
    """)
)
"""Every incident known; one that becomes known is added here and to the page."""


def rows(page: str) -> dict[str, list[str]]:
    """Return the tests that each row of a page names, by incident."""
    found = re.findall(r"^\| ([IW]\d\d) \|(.*)\|$", page, re.MULTILINE)
    assert len(dict(found)) == len(found), "an incident stands there twice"
    return {incident: re.findall(r"`(tests/[\w/]+\.py::\w+)`", cells) for incident, cells in found}


GUARDED = rows(PAGE)


@cache
def docstrings(path: Path) -> dict[str, str]:
    """Return the docstring of every function and class of a file of tests, by name."""
    nodes = ast.walk(ast.parse(path.read_text()))
    named = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]
    return {node.name: ast.get_docstring(node) or "" for node in named}


def named_in_tests() -> Iterator[tuple[str, str]]:
    """Yield each incident that a docstring names, and where."""
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for name, text in docstrings(path).items():
            for incident in _ID.findall(text):
                yield incident, f"{path.relative_to(ROOT)}::{name}"


def test_every_incident_has_one_row() -> None:
    assert GUARDED.keys() == IDS


@pytest.mark.parametrize("incident", sorted(GUARDED))
def test_the_tests_of_a_row_exist_and_name_it(incident: str) -> None:
    assert GUARDED[incident], "nothing guards it"
    for test in GUARDED[incident]:
        path, name = test.split("::")
        assert name.startswith("test_")
        assert incident in _ID.findall(docstrings(ROOT / path)[name]), test


def test_every_incident_that_a_test_names_is_known() -> None:
    strangers = [f"{incident} in {where}" for incident, where in named_in_tests() if incident not in GUARDED]
    assert not strangers
