"""How a name in the job becomes an adapter, on the controller's side and wherever a workload is hosted.

An adapter is a module (or an object, ``module:name``) with three names:

``Config``
    A ``Message``: the options of its section of the job.
``check(cfg, site) -> Sequence[Problem]``
    What is wrong, found without starting anything.
``open(cfg, host)``
    An async context manager that gives the port. A backend's takes ``(cfg, site)``.
``BRINGS``
    Optional, a backend's: sections of the job that it has workloads of its own for, so that their adapters are
    neither checked nor opened.
``loop_factory(seed, horizon_s=)``
    Optional, a backend's: what makes the event loop that a run on it belongs on; without it any loop will do.

``check_ranks(cfg, count) -> Sequence[Problem]``
    Optional, a trainer's whose workers train one policy together where they are several (``RankPort``): what is wrong
    with its options for so many.

An engine's module may have a fourth, ``capacity(cfg) -> int``: how many samples it takes at once before it refuses more
as ``EngineBusy``. A job that would have more in flight is refused.

An adapter's module imports without its heavy parts (torch): only ``open`` needs them.
"""

import difflib
import importlib
import importlib.util
import pkgutil
import sys
import zlib
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from protocols.backend import PayloadPort, Ranks
from protocols.errors import Problem
from protocols.inference import InferenceControllerPort
from protocols.roles import Roles
from protocols.sections import Site

ROOMS = {
    "backend": "backends",
    "model": "backends.models",
    "prompts": "backends.prompts",
    "reward": "backends.graders",
    "episode": "backends.episodes",
    "engine": "backends.engines",
    "train": "backends.trainers",
    "ledger": "backends.ledgers",
    "tracker": "backends.trackers",
    "role": "backends.roles",
}
"""Section of the job -> package in which its adapters lie."""

_NO_KINDS = frozenset({"pool", "data_parallel", "loading", "lora", "opening", "tokenizers"})
"""Modules beside adapters that are none."""

_TORCH_EXTRA = frozenset({"torch", "transformers", "safetensors", "numpy"})
_NOT_BACKENDS = frozenset(room.removeprefix("backends.") for room in ROOMS.values())


@dataclass(frozen=True, kw_only=True)
class Host:
    """What a workload finds where it runs.

    Attributes:
        site: Facts about the run.
        payloads: The payload store.
        inference: The inference controller; None where the workload was launched before it.
        devices: Numbers of the accelerators that it may use, the first one its own; none: it computes on the CPU.
        ranks: Where it stands among the other workers; None: it was opened by itself.
        roles: The other workers; None: it was opened by itself.
    """

    site: Site
    payloads: PayloadPort
    inference: InferenceControllerPort | None = None
    devices: tuple[int, ...] = ()
    ranks: Ranks | None = None
    roles: Roles | None = None


class Adapter(Protocol):
    """What ``resolve`` finds."""

    Config: type[Any]

    def check(self, cfg: Any, site: Site) -> Sequence[Problem]:
        """Return what is wrong, without starting anything."""
        ...

    def open(self, cfg: Any, host: Any) -> AbstractAsyncContextManager[Any]:
        """Open the port; what must be closed is closed when the block ends."""
        ...


class UnknownAdapter(LookupError):
    """No adapter by that name; ``problem`` says it for people."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


def known_kinds(section: str) -> tuple[str, ...]:
    """Return the kinds that ship with the project for a section, in alphabetical order."""
    package = importlib.import_module(ROOMS[section])
    names = (found.name for found in pkgutil.iter_modules(package.__path__))
    hidden = _NOT_BACKENDS if section == "backend" else _NO_KINDS
    return tuple(sorted(name for name in names if name not in hidden and not name.startswith("_")))


def resolve(section: str, kind: str, job_dir: str = "") -> Adapter:
    """Find the adapter that ``kind`` names in a section of the job.

    Args:
        section: A key of ``ROOMS``.
        kind: A short name, or ``module:name`` for a user's own.
        job_dir: Folder in which a user's own module may lie.

    Raises:
        UnknownAdapter: There is none, or it cannot be imported.
    """
    field = f"{section}.kind"
    if ":" in kind:
        return _resolve_dotted(field, kind, job_dir)
    kinds = known_kinds(section)
    if kind not in kinds:
        near = difflib.get_close_matches(kind, kinds, n=1)
        mend = f"did you mean '{near[0]}'?" if near else f"known are {', '.join(kinds)}, or module:name"
        raise UnknownAdapter(Problem(field=field, value=repr(kind), why="no such adapter", mend=mend))
    try:
        return importlib.import_module(f"{ROOMS[section]}.{kind}")  # pyright: ignore[reportReturnType]
    except ModuleNotFoundError as exc:
        raise UnknownAdapter(missing_module(field, kind, exc)) from exc


def missing_module(field: str, kind: str, error: ModuleNotFoundError) -> Problem:
    """Return the problem of an adapter whose library is not installed, with the extra that brings it."""
    library = (error.name or "").partition(".")[0]
    extra = "torch" if library in _TORCH_EXTRA else kind
    why = f"it needs the module '{library}', which is not installed"
    return Problem(field=field, value=repr(kind), why=why, mend=f"pip install 'conductor-rl[{extra}]'")


def _resolve_dotted(field: str, kind: str, job_dir: str) -> Adapter:
    try:
        return load_object(kind, job_dir)
    except Exception as exc:  # a user's module may raise anything while it is imported
        why = f"it cannot be imported: {type(exc).__name__}: {exc}"
        mend = "name it module:name, or path.py:name next to the job file"
        raise UnknownAdapter(Problem(field=field, value=repr(kind), why=why, mend=mend)) from exc


def load_object(name: str, folder: str) -> Any:
    """Import ``module:name`` or ``path.py:name``; a relative path is looked up in ``folder``.

    A file is imported once for each path, under a name of its own, so that two jobs may both have a
    ``reward.py``.

    Raises:
        ImportError, OSError: The module or file cannot be imported or read.
        AttributeError: It has no such name.
    """
    where, _, attribute = name.partition(":")
    if where.endswith(".py"):
        module = _load_file(str((Path(folder) / where).resolve()))
    else:
        module = importlib.import_module(where)
    found: Any = module
    for part in attribute.split("."):
        found = getattr(found, part)
    return found


def _load_file(path: str) -> ModuleType:
    name = f"conductor_user_{zlib.crc32(path.encode()):08x}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
