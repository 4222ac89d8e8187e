"""Bugs planted by rule: each looks for a pattern in the syntax of a function and spoils one place that has it.

A place is known by its function and its text, not by its line, so that a name stays while the code around it changes.
"""

import ast
import copy
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

Function = ast.FunctionDef | ast.AsyncFunctionDef
Place = tuple[ast.AST, Callable[[], object]]
"""What is spoiled, and the act of spoiling it."""

MOST_TEXT = 60
"""Characters of a place that its name holds."""

_UNSHIELDED = ast.parse('__import__("anyio").move_on_after', mode="eval").body
_LOGS = frozenset({"log", "logger"})
_BOUNDS: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A module with one bug in it.

    Attributes:
        function: Qualified name of the function that has it; empty where it is in none.
        rule: What was looked for.
        name: Function, rule and the text of the place; unique in the module.
        tree: The module's syntax, with the bug.
    """

    function: str
    rule: str
    name: str
    tree: ast.Module


def mutants(source: str) -> Iterator[Mutant]:
    """Yield every mutant of a module."""
    seen: Counter[str] = Counter()
    for index, _ in enumerate(_places(ast.parse(source))):
        tree = ast.parse(source)
        function, rule, (node, spoil) = next(islice(_places(tree), index, None))
        name = f"{function}: {rule}: {ast.unparse(node).splitlines()[0][:MOST_TEXT]}"
        seen[name] += 1
        spoil()
        yield Mutant(
            function=function,
            rule=rule,
            name=name if seen[name] == 1 else f"{name} ({seen[name]})",
            tree=ast.fix_missing_locations(tree),
        )


def functions(tree: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[tuple[str, Function]]:
    """Yield the functions and methods of a module; those inside of others belong to them."""
    for node in tree.body:
        if isinstance(node, Function):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, f"{prefix}{node.name}.")


def _places(tree: ast.Module) -> Iterator[tuple[str, str, Place]]:
    yield from (("", "row", place) for place in _rows(tree))
    for name, function in functions(tree):
        for rule, find in RULES.items():
            for node in ast.walk(function):
                yield from ((name, rule, place) for place in find(node))


def _rows(tree: ast.Module) -> Iterator[Place]:
    """Delete a transition from the table of them."""
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "TRANSITIONS":
            table = node.value
            assert isinstance(table, ast.Dict)
            for state, row in zip(table.keys, table.values, strict=True):
                for targets in [one for one in ast.walk(row) if isinstance(one, ast.Set)]:
                    for target in targets.elts:
                        assert state is not None
                        yield ast.Tuple([state, target]), partial(_leave_out, targets, target)


def _leave_out(targets: ast.Set, target: ast.expr) -> None:
    """Leave out one element; a set of none has no literal, but may be unpacked out of nothing."""
    nothing = ast.Starred(ast.Tuple([], ast.Load()), ast.Load())
    targets.elts = [one for one in targets.elts if one is not target] or [nothing]


def _shields(node: ast.AST) -> Iterator[Place]:
    """Let cancellation through a shield; its deadline stays."""
    if isinstance(node, ast.withitem) and isinstance(call := node.context_expr, ast.Call):
        if ast.unparse(call.func) == "bounded_shield":
            yield call, partial(setattr, call, "func", copy.deepcopy(_UNSHIELDED))
        for keyword in call.keywords:
            if keyword.arg == "shield":
                yield call, partial(call.keywords.remove, keyword)


def _finallies(node: ast.AST) -> Iterator[Place]:
    """Clean up where all went well, and only there."""
    for body in _bodies(node):
        for tried in body:
            if isinstance(tried, ast.Try) and tried.finalbody:
                yield tried.finalbody[0], partial(_clean_up_afterwards, body, tried)


def _clean_up_afterwards(body: list[ast.stmt], tried: ast.Try) -> None:
    after, tried.finalbody = tried.finalbody, []
    _put(body, tried, *([tried] if tried.handlers else tried.body), *after)


def _calls(node: ast.AST) -> Iterator[Place]:
    """Leave out a call that is made for what it does: an append, an abort, a release, a gate, a ring."""
    for body in _bodies(node):
        for statement in body:
            if isinstance(statement, ast.Expr) and _acts(statement.value):
                yield statement, partial(_put, body, statement, ast.Pass())


def _acts(value: ast.expr) -> bool:
    """Return whether an expression is a call, awaited or not, that is no log line."""
    call = value.value if isinstance(value, ast.Await) else value
    if not isinstance(call, ast.Call):
        return False
    nodes = list(ast.walk(call.func))
    names = {one.id for one in nodes if isinstance(one, ast.Name)}
    return _LOGS.isdisjoint(names | {one.attr for one in nodes if isinstance(one, ast.Attribute)})


def _blocks(node: ast.AST) -> Iterator[Place]:
    """Run the body of a block without it: a lock, a gate, a deadline."""
    for body in _bodies(node):
        for block in body:
            if isinstance(block, ast.With | ast.AsyncWith) and not any(item.optional_vars for item in block.items):
                yield block, partial(_put, body, block, *block.body)


def _bounds(node: ast.AST) -> Iterator[Place]:
    """Shift a bound by the value that equals it."""
    if isinstance(node, ast.Compare):
        for operator in node.ops:
            if type(operator) in _BOUNDS:
                yield node, partial(_put, node.ops, operator, _BOUNDS[type(operator)]())


def _ones(node: ast.AST) -> Iterator[Place]:
    """Be off by one, or do not count."""
    for field, value in ast.iter_fields(node):
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Add | ast.Sub) and _is_one(one.right):
                yield one, partial(_replace, node, field, one, one.left)
    for body in _bodies(node):
        for statement in body:
            if isinstance(statement, ast.AugAssign):
                yield statement, partial(_put, body, statement, ast.Pass())


def _is_one(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 1


def _conditions(node: ast.AST) -> Iterator[Place]:
    """Do what is done otherwise."""
    if isinstance(node, ast.If | ast.While | ast.IfExp) and not isinstance(node.test, ast.Constant):
        yield node.test, partial(setattr, node, "test", ast.UnaryOp(ast.Not(), node.test))
    elif isinstance(node, ast.comprehension):
        for test in node.ifs:
            yield test, partial(_put, node.ifs, test, ast.UnaryOp(ast.Not(), test))


def _bodies(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for field in ("body", "orelse", "finalbody"):
        body = getattr(node, field, None)
        if isinstance(body, list):
            yield body


def _put(nodes: list[Any], old: ast.AST, *new: ast.AST) -> None:
    at = next(index for index, node in enumerate(nodes) if node is old)
    nodes[at : at + 1] = new


def _replace(parent: ast.AST, field: str, old: ast.AST, new: ast.AST) -> None:
    value = getattr(parent, field)
    if isinstance(value, list):
        _put(value, old, new)
    else:
        setattr(parent, field, new)


RULES: dict[str, Callable[[ast.AST], Iterator[Place]]] = {
    "no shield": _shields,
    "no finally": _finallies,
    "no call": _calls,
    "no block": _blocks,
    "bound": _bounds,
    "one": _ones,
    "not": _conditions,
}
"""By name; beside them ``row`` deletes a transition from the module's table."""
