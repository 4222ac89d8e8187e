"""A pytest plugin that runs its tests once for each mutant, in a forked child, and tells which mutants survive.

Imports and collection are paid once. A first child runs all tests over functions that note when they are entered:
a mutant meets only tests that enter its function, the most particular first, until one fails. Tests in real time
are left out, for they start threads.
"""

import gc
import os
import pickle
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import Phase, settings

from backends.sim.virtual_time import VirtualTimeLoop
from tests.sim.mutants.children import fork
from tests.sim.mutants.planting import plant, plant_recorders, source_of
from tests.sim.mutants.rules import Mutant, mutants
from tests.sim.mutants.targets import SLOW, TARGETS

TEST_CPU_S = 2.5
"""Processor time that one test may take, for bugs that loop without an await; the slowest takes a fifth of it."""

SPIN_LIMIT = 20_000
"""Rounds of the loop at one instant; whole runs of these tests stay far below it."""

SURVIVED, KILLED = 0, 1
"""How a child ends. A signal kills it as well, and anything else is an error of the harness."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a mutant; where ``mutant`` is empty, the module is done.

    Attributes:
        tests: How many enter its function.
        cpu_s: Processor time that its child took.
    """

    module: str
    mutant: str = ""
    survived: bool = False
    tests: int = 0
    cpu_s: float = 0.0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--mutate", action="append", default=[], help="a module to plant bugs in")
    parser.addoption("--verdicts", type=int, help="descriptor of the pipe that verdicts go to")


def pytest_configure() -> None:
    """Let hypothesis draw the same examples for each mutant and shrink none; let a spin be found soon."""
    settings.register_profile("mutants", settings(), derandomize=True, phases=(Phase.explicit, Phase.generate))
    settings.load_profile("mutants")
    init: Any = VirtualTimeLoop.__init__
    init.__kwdefaults__["spin_limit"] = SPIN_LIMIT


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = [item for item in items if not item.get_closest_marker("real_time") and not item.name.startswith(SLOW)]


def pytest_runtestloop(session: pytest.Session) -> bool:
    """Take the place of pytest's own loop."""
    if session.testsfailed:
        raise session.Interrupted("the tests could not be collected")
    options: Any = session.config.option
    modules: list[str] = options.mutate
    gc.freeze()  # or every child copies what its collector looks at
    entered = _learn(session, modules)
    with os.fdopen(options.verdicts, "wb", buffering=0) as pipe:
        for module in modules:
            for verdict in (*_judge_all(session, module, entered), Verdict(module=module)):
                pipe.write(msgspec.json.encode(verdict) + b"\n")
    return True


def _learn(session: pytest.Session, modules: Sequence[str]) -> list[frozenset[str]]:
    """Return which functions each test enters, as ``module:function``.

    Raises:
        UsageError: A test fails where there is no bug.
    """
    receive, send = os.pipe()

    def learn() -> int:
        seen: set[str] = set()
        for module in modules:
            plant_recorders(module, seen)
        with os.fdopen(send, "wb", buffering=0) as pipe:
            for item in session.items:
                seen.clear()
                if _fails(session, item):
                    return KILLED
                pickle.dump(frozenset(seen), pipe)
        return SURVIVED

    child = fork(learn)
    os.close(send)
    entered: list[frozenset[str]] = []
    with os.fdopen(receive, "rb") as pipe, suppress(EOFError):
        while len(entered) < len(session.items):
            entered.append(pickle.load(pipe))  # noqa: S301 - from a child of this process
    status = os.waitpid(child, 0)[1]
    if status:
        test = session.items[len(entered)].nodeid
        how = f"takes over {TEST_CPU_S} s of processor time" if os.WTERMSIG(status) == signal.SIGPROF else "fails"
        raise pytest.UsageError(f"where there is no bug, {test} {how}")
    return entered


def _judge_all(session: pytest.Session, module: str, entered: Sequence[frozenset[str]]) -> Iterator[Verdict]:
    """Judge the mutants of a module, as many at a time as there are processors."""
    running: dict[int, tuple[Mutant, int]] = {}
    for mutant in mutants(source_of(module)):
        if len(running) == (os.cpu_count() or 1):
            yield _next(module, running)
        items = _items_for(session, module, mutant.function, entered)
        child = fork(lambda mutant=mutant, items=items: _meet(session, module, mutant, items))
        running[child] = mutant, len(items)
    while running:
        yield _next(module, running)


def _next(module: str, running: dict[int, tuple[Mutant, int]]) -> Verdict:
    child, status, usage = os.wait4(-1, 0)
    mutant, tests = running.pop(child)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) not in {SURVIVED, KILLED}:
        raise pytest.UsageError(f"{module}: {mutant.name}: it could not be judged, as told above")
    cpu_s = usage.ru_utime + usage.ru_stime
    return Verdict(module=module, mutant=mutant.name, survived=status == SURVIVED, tests=tests, cpu_s=cpu_s)


def _items_for(
    session: pytest.Session, module: str, function: str, entered: Sequence[frozenset[str]]
) -> list[pytest.Item]:
    """Return the tests of a module that enter a function, those that enter little else first."""
    near = [
        (functions, item)
        for functions, item in zip(entered, session.items, strict=True)
        if item.nodeid.startswith(TARGETS[module]) and (not function or f"{module}:{function}" in functions)
    ]
    return [item for _, item in sorted(near, key=lambda pair: len(pair[0]))]


def _meet(session: pytest.Session, module: str, mutant: Mutant, items: Sequence[pytest.Item]) -> int:
    plant(module, mutant)
    return KILLED if any(_fails(session, item) for item in items) else SURVIVED


def _fails(session: pytest.Session, item: pytest.Item) -> bool:
    signal.setitimer(signal.ITIMER_PROF, TEST_CPU_S)  # nobody handles its signal, which ends the process
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
    return session.testsfailed > 0
