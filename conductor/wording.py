"""How types and values of a job are put into words."""

import datetime as dt
import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import inspect

from protocols.sections import Section

_LONGEST = 60


def shown(raw: Any) -> str:
    """Return a value of the job as text, much as it stands there, at most 60 characters."""
    text = repr(raw) if isinstance(raw, str) else json.dumps(raw, default=str, ensure_ascii=False)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


_NOUNS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (bool, "is true or false"),  # before the whole numbers, among which Python counts it
    (int, "is a whole number"),
    (float, "is a number"),
    (str, "is text"),
    (Mapping, "is a table"),
    (Sequence, "is a list"),
    ((dt.date, dt.time), "is a date or time"),
    (type(None), "is empty"),
)


def noun(raw: Any) -> str:
    """Say what a value is, as the reason for refusing it: ``is text``."""
    if raw == "":
        return "is empty text"
    known = (text for kind, text in _NOUNS if isinstance(raw, kind))
    return next(known, f"is a {type(raw).__name__}")


def expected(info: inspect.Type) -> str:
    """Say what a type takes: ``a whole number of at least 1``."""
    match info:
        case inspect.Metadata():
            return expected(info.type)
        case inspect.UnionType():
            return " or ".join(expected(kind) for kind in info.types if not isinstance(kind, inspect.NoneType))
        case inspect.LiteralType():
            choices = ", ".join(shown(value) for value in info.values)
            return choices if len(info.values) == 1 else f"one of {choices}"
        case inspect.TupleType():
            return f"a list of {len(info.item_types)}: {', '.join(expected(item) for item in info.item_types)}"
        case inspect.VarTupleType() | inspect.ListType() | inspect.SetType() | inspect.FrozenSetType():
            return f"a list{_length(info, 'items')}, each {expected(info.item_type)}"
        case _:
            return _expected_leaf(info)


def _expected_leaf(info: inspect.Type) -> str:
    match info:
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return _within("a whole number", info)
        case inspect.FloatType():
            return _within("a number", info)
        case inspect.StrType():
            return f"text{_length(info, 'characters')}" if info.pattern is None else f"text that matches {info.pattern}"
        case inspect.StructType(cls=cls) if cls is Section:
            return "the name of an adapter, or a table with 'kind' and its options"
        case _:
            return "a table"


def mend_for(info: inspect.Type, raw: Any) -> str:
    """Say what to write instead of ``raw``."""
    takes = expected(info)
    if isinstance(info, inspect.FloatType | inspect.IntType) and isinstance(raw, str) and _reads_as_number(raw):
        return f"give {takes}, without quotes (in YAML: 1.0e-3)"
    return f"give {takes}"


def bound_fault(info: inspect.Type, raw: Any) -> str | None:
    """Say which bound of its type a value of the right kind breaks; None: none."""
    match info:
        case inspect.IntType() | inspect.FloatType():
            return _number_fault(info, raw)
        case inspect.StrType(pattern=str(pattern)) if re.search(pattern, raw) is None:
            return "has characters that are not allowed"
        case inspect.StrType() | inspect.VarTupleType() | inspect.ListType() | inspect.SetType():
            if info.min_length is not None and len(raw) < info.min_length:
                return "is too short" if raw else "is empty"
            return "is too long" if info.max_length is not None and len(raw) > info.max_length else None
        case _:
            return None


def _number_fault(info: inspect.IntType | inspect.FloatType, raw: float) -> str | None:
    if isinstance(info, inspect.FloatType) and not abs(raw) <= sys.float_info.max:  # neither is NaN
        return "is not a finite number"
    if (info.ge is not None and raw < info.ge) or (info.gt is not None and raw <= info.gt):
        return "is too small"
    if (info.le is not None and raw > info.le) or (info.lt is not None and raw >= info.lt):
        return "is too large"
    return None


def _within(unit: str, info: inspect.IntType | inspect.FloatType) -> str:
    low = f"above {info.gt:g}" if info.gt is not None else f"of at least {info.ge:g}" if info.ge is not None else ""
    high = f"below {info.lt:g}" if info.lt is not None else f"at most {info.le:g}" if info.le is not None else ""
    return f"{unit} {' and '.join(filter(None, (low, high)))}".rstrip()


def _length(info: Any, unit: str) -> str:
    if info.min_length:
        return f" of at least {info.min_length} {unit}"
    return f" of at most {info.max_length} {unit}" if info.max_length is not None else ""


def _reads_as_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
