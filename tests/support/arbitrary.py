"""Hypothesis strategies for the types that messages are made of."""

from functools import cache
from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

_text = st.text(max_size=20)
_int = st.integers(min_value=-(2**63), max_value=2**64 - 1)
_float = st.floats(allow_nan=False)
_json = st.recursive(
    st.none() | st.booleans() | _int | _float | _text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=5,
)


@cache
def values(kind: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for a message class or any other annotation that msgspec can decode.

    What stands under ``Any`` is a JSON value. NaN is left out: it does not equal itself.

    Raises:
        NotImplementedError: The type is none that a message may hold.
    """
    return _strategy(inspect.type_info(kind))


_SCALARS: dict[type[inspect.Type], st.SearchStrategy[Any]] = {
    inspect.NoneType: st.none(),
    inspect.BoolType: st.booleans(),
    inspect.IntType: _int,
    inspect.FloatType: _float,
    inspect.StrType: _text,
    inspect.AnyType: _json,
}


def _strategy(info: inspect.Type) -> st.SearchStrategy[Any]:
    match info:
        case inspect.LiteralType(values=members):
            return st.sampled_from(members)
        case inspect.UnionType(types=types):
            return st.one_of([_strategy(one) for one in types])
        case _ if type(info) in _SCALARS:
            return _SCALARS[type(info)]
        case _:
            return _container(info)


def _container(info: inspect.Type) -> st.SearchStrategy[Any]:
    match info:
        case inspect.TupleType(item_types=types):
            return st.tuples(*[_strategy(one) for one in types])
        case inspect.VarTupleType(item_type=item):
            return st.lists(_strategy(item), max_size=3).map(tuple)
        case inspect.FrozenSetType(item_type=item):
            return st.frozensets(_strategy(item), max_size=3)
        case inspect.DictType(key_type=key, value_type=value):
            return st.dictionaries(_strategy(key), _strategy(value), max_size=3)
        case inspect.StructType(cls=cls, fields=fields):
            return st.builds(cls, **{field.name: _strategy(field.type) for field in fields})
        case _:
            raise NotImplementedError(f"no message holds {info}")


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
