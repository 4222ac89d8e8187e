"""The harness in a process of its own, and its verdicts as they come."""

import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec

from tests.sim.mutants.harness import Verdict
from tests.sim.mutants.targets import TARGETS

ROOT = Path(__file__).parents[3]


class Harvest:
    """Verdicts on the mutants of some modules, in the order of the modules."""

    def __init__(self, pipe: BinaryIO) -> None:
        self._pipe = pipe
        self._done: dict[str, list[Verdict]] = {}

    def of(self, module: str) -> list[Verdict]:
        """Return what became of the mutants of a module; waits until all of them are judged.

        Raises:
            AssertionError: The harness ended before; it has said why.
        """
        coming: list[Verdict] = []
        while module not in self._done:
            line = self._pipe.readline()
            assert line, "the harness has ended; what it said is captured below"
            verdict = msgspec.json.decode(line, type=Verdict)
            if verdict.mutant:
                coming.append(verdict)
            else:
                self._done[verdict.module], coming = coming, []
        return self._done[module]


@contextmanager
def open_harvest(modules: Sequence[str]) -> Generator[Harvest]:
    """Judge every mutant of some modules while the block runs."""
    receive, send = os.pipe()
    command = [sys.executable, "-m", "pytest", "-q", "--capture=no", "-p", "tests.sim.mutants.harness"]
    command += [f"--verdicts={send}", *(f"--mutate={module}" for module in modules), *_tests_of(modules)]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    harness = subprocess.Popen(  # noqa: S603 - this interpreter, on files of this repository
        command, cwd=ROOT, env=environment, pass_fds=[send], process_group=0
    )
    with harness:
        os.close(send)
        try:
            with os.fdopen(receive, "rb") as pipe:
                yield Harvest(pipe)
        finally:
            if harness.poll() is None:
                os.killpg(harness.pid, signal.SIGKILL)


def _tests_of(modules: Iterable[str]) -> list[str]:
    return sorted({path for module in modules for path in TARGETS[module]})
