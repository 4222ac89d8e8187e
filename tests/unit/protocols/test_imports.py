"""What an import brings in: the controller starts fast and on machines that have no torch."""

import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import conductor
import protocols

ROOT = Path(protocols.__file__).parents[1]
HEAVY = {"torch", "ray", "numpy", "transformers"}
PROTOCOLS = [f"protocols.{found.name}" for found in pkgutil.iter_modules(protocols.__path__)]

PROGRAM = """
import sys, time
before, began = set(sys.modules), time.process_time()
import importlib
for name in sys.argv[1:]:
    importlib.import_module(name)
seconds = time.process_time() - began
print(seconds, *sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
"""


def _import(*modules: str) -> tuple[float, set[str]]:
    """Import in a fresh process; returns the CPU seconds that took and the top-level modules it brought in."""
    done = subprocess.run(  # noqa: S603 - this very interpreter
        [sys.executable, "-c", PROGRAM, *modules],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    seconds, *brought = done.stdout.split()
    return float(seconds), set(brought)


def test_importing_conductor_is_cheap() -> None:
    """Seconds of the processor, the best of three: other work on the machine must not decide."""
    seconds, brought = min(_import("conductor") for _ in range(3))
    assert seconds < 0.3
    assert not brought & HEAVY


def test_no_module_of_the_controller_brings_in_what_backends_need() -> None:
    found = pkgutil.walk_packages(conductor.__path__, "conductor.")
    modules = [module.name for module in found if not module.name.endswith("__main__")]
    assert "conductor.config" in modules
    _, brought = _import(*modules)
    assert not brought & HEAVY


@pytest.mark.parametrize("module", PROTOCOLS)
def test_protocols_need_the_standard_library_and_msgspec(module: str) -> None:
    """``aio`` needs anyio too, which takes sniffio where that is installed."""
    needed = ["msgspec", "anyio"] if module == "protocols.aio" else ["msgspec"]
    _, allowed = _import(*needed)
    _, brought = _import(module)
    if "anyio" in needed:
        allowed.add("sniffio")
    assert brought - sys.stdlib_module_names <= {"protocols"} | allowed


def test_what_plays_episodes_of_a_small_model_loads_no_torch() -> None:
    """Each worker that does takes four seconds more to start, and to be replaced."""
    _, brought = _import("backends.processes.worker", "backends.episodes.single_turn", "backends.models.scratch")
    assert not brought & HEAVY
