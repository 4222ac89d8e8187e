"""From what a job file says to messages, with everything that is wrong said at once."""

import difflib
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar, cast

import msgspec
from msgspec import inspect

from conductor.wording import bound_fault, expected, mend_for, noun, shown
from protocols.errors import Problem
from protocols.sections import Section

M = TypeVar("M", bound=msgspec.Struct)

_BAD: Any = object()
"""Stands for a value whose problem has been reported."""


def decode(cls: type[M], raw: Mapping[str, Any], path: str = "") -> tuple[M | None, list[Problem]]:
    """Turn nested dictionaries into a message.

    Args:
        cls: The message. Its fields may be numbers, text, booleans, literals, lists, tuples, sets,
            dictionaries, unions of these and None, other messages, and ``Section``.
        raw: As a TOML or YAML parser gives it; messages that are built already are checked like the rest.
        path: Dotted path of ``raw`` in the job, for the problems.

    Returns:
        The message, or None where anything is wrong; every problem, in the order of the fields,
        unknown keys last.

    Raises:
        TypeError: ``cls`` has a field of a type that no job file can hold.
    """
    fields, problems = decode_fields(cls, raw, path)
    return (None if problems else cls(**fields)), problems


def decode_fields(cls: type[M], raw: Mapping[str, Any], path: str = "") -> tuple[dict[str, Any], list[Problem]]:
    """Do as ``decode``, but return the fields that are right, defaults included, whatever else is wrong.

    A field for which an unknown key looks like a misspelling is not among them: it is neither missing
    nor at its default.
    """
    problems: list[Problem] = []
    return _fields(cls, raw, path, problems), problems


def _fields(cls: type[M], raw: Mapping[str, Any], path: str, problems: list[Problem]) -> dict[str, Any]:
    known = {field.encode_name: field for field in msgspec.structs.fields(cls)}
    strangers, misspelt = _strangers(raw, known.keys(), path)
    right: dict[str, Any] = {}
    for key, field in known.items():
        at = _join(path, key)
        info = inspect.type_info(field.type)
        if key in raw:
            value = _value(info, _with_kind(field.default, raw[key]), at, problems)
            if value is not _BAD:
                right[field.name] = value
        elif key in misspelt:
            continue
        elif field.required:
            problems.append(Problem(field=at, value=None, why="is missing", mend=f"give {expected(info)}"))
        else:
            right[field.name] = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    problems += strangers
    return right


def _strangers(raw: Mapping[str, Any], known: Collection[str], path: str) -> tuple[list[Problem], set[str]]:
    """Find unknown keys, and the known ones that they seem to stand for."""
    problems: list[Problem] = []
    misspelt: set[str] = set()
    for key, value in raw.items():
        if key in known:
            continue
        near = difflib.get_close_matches(str(key), known, n=1)
        misspelt.update(near)
        mend = f"did you mean '{near[0]}'?" if near else f"known are {', '.join(known)}"
        problems.append(Problem(field=_join(path, key), value=shown(value), why="unknown key", mend=mend))
    return problems, misspelt


def _with_kind(default: Any, raw: Any) -> Any:
    if isinstance(default, Section) and isinstance(raw, Mapping) and "kind" not in raw:
        return {"kind": default.kind, **cast("Mapping[str, Any]", raw)}
    return cast("object", raw)


def _value(info: inspect.Type, raw: Any, at: str, problems: list[Problem]) -> Any:
    if isinstance(info, inspect.Metadata):
        return _value(info.type, raw, at, problems)
    return _DECODERS.get(type(info), _leaf)(info, raw, at, problems)


def _union(info: inspect.UnionType, raw: Any, at: str, problems: list[Problem]) -> Any:
    if raw is None and info.includes_none:
        return None
    tries: list[list[Problem]] = []
    for member in info.types:
        if isinstance(member, inspect.NoneType):
            continue
        found: list[Problem] = []
        value = _value(member, raw, at, found)
        if value is not _BAD:
            return value
        tries.append(found)
    inside = [found for found in tries if any(problem.field != at for problem in found)]
    if len(tries) > 1 and not inside:
        return _refuse(info, raw, at, problems)
    problems += min(inside or tries, key=len)  # one has the right shape: say what is wrong within
    return _BAD


def _struct(info: inspect.StructType, raw: Any, at: str, problems: list[Problem]) -> Any:
    if info.cls is Section:
        return _section(info, raw, at, problems)
    if isinstance(raw, info.cls):
        raw = msgspec.structs.asdict(raw)
    if not isinstance(raw, Mapping):
        return _refuse(info, raw, at, problems)
    before = len(problems)
    fields = _fields(info.cls, cast("Mapping[str, Any]", raw), at, problems)
    return info.cls(**fields) if len(problems) == before else _BAD


def _section(info: inspect.StructType, raw: Any, at: str, problems: list[Problem]) -> Any:
    if isinstance(raw, Section):
        return raw
    if isinstance(raw, str) and raw:
        return Section(kind=raw)
    if not isinstance(raw, Mapping):
        return _refuse(info, raw, at, problems)
    options = dict(cast("Mapping[str, Any]", raw))
    kind = options.pop("kind", None)
    if isinstance(kind, str) and kind:
        return Section(kind=kind, options=options)
    why = "is missing" if kind is None else noun(kind)
    value = None if kind is None else shown(kind)
    problems.append(Problem(field=_join(at, "kind"), value=value, why=why, mend="name an adapter"))
    return _BAD


_Sequence = inspect.VarTupleType | inspect.ListType | inspect.SetType | inspect.FrozenSetType


def _sequence(info: _Sequence, raw: Any, at: str, problems: list[Problem]) -> Any:
    if not isinstance(raw, list | tuple):
        return _refuse(info, raw, at, problems)
    fault = bound_fault(info, raw)
    if fault is not None:
        return _refuse(info, raw, at, problems, why=fault)
    raw = cast("list[Any]", raw)
    items = [_value(info.item_type, item, f"{at}[{n}]", problems) for n, item in enumerate(raw)]
    if any(item is _BAD for item in items):
        return _BAD
    match info:
        case inspect.ListType():
            return items
        case inspect.VarTupleType():
            return tuple(items)
        case _:
            return frozenset(items) if isinstance(info, inspect.FrozenSetType) else set(items)


def _fixed_tuple(info: inspect.TupleType, raw: Any, at: str, problems: list[Problem]) -> Any:
    if not isinstance(raw, list | tuple):
        return _refuse(info, raw, at, problems)
    raw = cast("list[Any]", raw)
    if len(raw) != len(info.item_types):
        return _refuse(info, raw, at, problems, why=f"has {len(raw)} items")
    pairs = zip(info.item_types, raw, strict=True)
    items = [_value(item_type, item, f"{at}[{n}]", problems) for n, (item_type, item) in enumerate(pairs)]
    return _BAD if any(item is _BAD for item in items) else tuple(items)


def _dictionary(info: inspect.DictType, raw: Any, at: str, problems: list[Problem]) -> Any:
    if not isinstance(raw, Mapping):
        return _refuse(info, raw, at, problems)
    raw = cast("Mapping[Any, Any]", raw)
    keys = [_value(info.key_type, key, _join(at, key), problems) for key in raw]
    values = [_value(info.value_type, value, _join(at, key), problems) for key, value in raw.items()]
    return _BAD if any(item is _BAD for item in (*keys, *values)) else dict(zip(keys, values, strict=True))


def _anything(_info: inspect.AnyType, raw: Any, _at: str, _problems: list[Problem]) -> Any:
    return raw


def _leaf(info: inspect.Type, raw: Any, at: str, problems: list[Problem]) -> Any:
    fault = _leaf_fault(info, raw)
    if fault is not None:
        return _refuse(info, raw, at, problems, why=fault)
    return float(raw) if isinstance(info, inspect.FloatType) else raw


def _leaf_fault(info: inspect.Type, raw: Any) -> str | None:
    truth = isinstance(raw, bool)  # which Python counts among the whole numbers
    match info:
        case inspect.BoolType():
            fits = truth
        case inspect.IntType():
            fits = isinstance(raw, int) and not truth
        case inspect.FloatType():
            fits = isinstance(raw, int | float) and not truth
        case inspect.StrType():
            fits = isinstance(raw, str)
        case inspect.LiteralType():
            return None if any(raw == value and type(raw) is type(value) for value in info.values) else "no such choice"
        case inspect.NoneType():
            fits = raw is None
        case _:
            raise TypeError(f"a job file cannot hold a {type(info).__name__.removesuffix('Type').lower()}")
    return bound_fault(info, raw) if fits else noun(raw)


def _refuse(info: inspect.Type, raw: Any, at: str, problems: list[Problem], why: str | None = None) -> Any:
    why = noun(raw) if why is None else why
    problems.append(Problem(field=at, value=shown(raw), why=why, mend=mend_for(info, raw)))
    return _BAD


def _join(path: str, key: object) -> str:
    name = str(key) or "''"
    return f"{path}.{name}" if path else name


_Decoder = Callable[[Any, Any, str, list[Problem]], Any]
_DECODERS: dict[type[inspect.Type], _Decoder] = {
    inspect.AnyType: _anything,
    inspect.UnionType: _union,
    inspect.StructType: _struct,
    inspect.VarTupleType: _sequence,
    inspect.ListType: _sequence,
    inspect.SetType: _sequence,
    inspect.FrozenSetType: _sequence,
    inspect.TupleType: _fixed_tuple,
    inspect.DictType: _dictionary,
}
