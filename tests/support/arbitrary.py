"""Hypothesis strategies for the types that messages are made of."""

from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

_text = st.text(max_size=20)
_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | _text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=5,
)


@cache
def values(kind: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for a message class or any other annotation that msgspec can decode.

    What stands under ``Any`` is a JSON value. NaN is left out: it does not equal itself.

    Raises:
        KeyError: The type is none that a message may hold.
    """
    return _strategy(inspect.type_info(kind))


def _strategy(info: Any) -> st.SearchStrategy[Any]:
    return _BUILDERS[type(info)](info)


def _integers(info: inspect.IntType) -> st.SearchStrategy[int]:
    low = info.ge if info.gt is None else info.gt + 1
    high = info.le if info.lt is None else info.lt - 1
    return st.integers(-(2**63) if low is None else low, 2**63 if high is None else high)


def _floats(info: inspect.FloatType) -> st.SearchStrategy[float]:
    low = info.ge if info.gt is None else info.gt
    high = info.le if info.lt is None else info.lt
    exclude_low, exclude_high = info.gt is not None, info.lt is not None
    return st.floats(low, high, exclude_min=exclude_low, exclude_max=exclude_high, allow_nan=False)


def _struct(info: inspect.StructType) -> st.SearchStrategy[Any]:
    return st.builds(info.cls, **{field.name: _strategy(field.type) for field in info.fields})


_BUILDERS: dict[type[inspect.Type], Callable[[Any], st.SearchStrategy[Any]]] = {
    inspect.AnyType: lambda _: _json,
    inspect.NoneType: lambda _: st.none(),
    inspect.BoolType: lambda _: st.booleans(),
    inspect.IntType: _integers,
    inspect.FloatType: _floats,
    inspect.StrType: lambda info: st.text(min_size=info.min_length or 0, max_size=20),
    inspect.BytesType: lambda info: st.binary(min_size=info.min_length or 0, max_size=20),
    inspect.LiteralType: lambda info: st.sampled_from(info.values),
    inspect.UnionType: lambda info: st.one_of([_strategy(one) for one in info.types]),
    inspect.TupleType: lambda info: st.tuples(*[_strategy(one) for one in info.item_types]),
    inspect.VarTupleType: lambda info: st.lists(_strategy(info.item_type), max_size=3).map(tuple),
    inspect.FrozenSetType: lambda info: st.frozensets(_strategy(info.item_type), max_size=3),
    inspect.DictType: lambda info: st.dictionaries(_strategy(info.key_type), _strategy(info.value_type), max_size=3),
    inspect.StructType: _struct,
}


def message_types(module: Any) -> list[type[msgspec.Struct]]:
    """Return the public messages that a module defines, in the order of definition."""
    return [
        member
        for name, member in vars(module).items()
        if isinstance(member, type)
        and issubclass(member, msgspec.Struct)
        and member.__module__ == module.__name__
        and not name.startswith("_")
    ]
