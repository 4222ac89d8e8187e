"""Putting a bug into a module that is loaded: its functions get other code, and whoever holds them has the bug.

Nothing is imported anew, so a mutant costs no more than the compilation of its module.
"""

import ast
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from tests.sim.mutants.rules import Mutant, functions


def plant(module: str, mutant: Mutant) -> None:
    """Make a module of this process the mutant.

    Raises:
        KeyError: There is no such function, in the loaded module or in the mutant.
        ValueError: The bug changed which variables a function shares with its surroundings.
    """
    loaded = import_module(module)
    code = compile(mutant.tree, _file(loaded), "exec")
    if mutant.function:
        functions_of(loaded)[mutant.function].__code__ = codes_in(code)[mutant.function]
    else:
        _replace_table(loaded, code)


def plant_recorders(module: str, seen: set[str]) -> None:
    """Let every function of a module note that it was entered, as ``module:function``, and do what it did.

    All of them are planted anew, so what kills a mutant is its bug and not the planting.
    """
    loaded = import_module(module)
    vars(loaded)["__seen__"] = seen
    tree = ast.parse(source_of(module))
    for name, function in functions(tree):
        function.body.insert(0, ast.parse(f"__seen__.add({f'{module}:{name}'!r})").body[0])
    codes = codes_in(compile(ast.fix_missing_locations(tree), _file(loaded), "exec"))
    for name, function in functions_of(loaded).items():
        if name in codes:
            function.__code__ = codes[name]


def source_of(module: str) -> str:
    """Return the text of a module."""
    return Path(_file(import_module(module))).read_text()


def functions_of(module: ModuleType) -> dict[str, FunctionType]:
    """Return the functions and methods that a module defines, without their decorators, by qualified name."""
    own = [value for value in vars(module).values() if getattr(value, "__module__", None) == module.__name__]
    classes = [value for value in own if isinstance(value, type)]
    values = [*own, *(member for one in classes for member in vars(one).values())]
    found = [function for value in values if (function := _bare(value)) is not None]
    return {one.__qualname__: one for one in found if one.__code__.co_filename == _file(module)}


def codes_in(code: CodeType) -> dict[str, CodeType]:
    """Return the code of every function inside, however deep, by qualified name."""
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    found = {one.co_qualname: one for one in inner}
    for one in inner:
        found |= codes_in(one)
    return found


def _bare(value: Any) -> FunctionType | None:
    if isinstance(value, property):
        value = value.fget
    if isinstance(value, cached_property):
        value = value.func
    value = getattr(value, "__func__", value)
    value = getattr(value, "__wrapped__", value)
    return value if isinstance(value, FunctionType) else None


def _replace_table(module: ModuleType, code: CodeType) -> None:
    """Let the table of transitions, which others hold as well, have the rows of the mutant's."""
    fresh: dict[str, Any] = {"__name__": module.__name__}
    exec(code, fresh)  # noqa: S102 - the module's own source, but for one row
    table: dict[Any, Any] = vars(module)["TRANSITIONS"]
    states = {str(state): state for state in table}
    for state, targets in fresh["TRANSITIONS"].items():
        table[states[str(state)]] = frozenset(states[str(target)] for target in targets)


def _file(module: ModuleType) -> str:
    assert module.__file__ is not None
    return module.__file__
