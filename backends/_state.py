"""The folder of one run on this machine, and the lock by which others know that the run lives.

It exists before anything is put into it and before any process is started, and every process carries its name
(``_leftovers``). The kernel gives the lock back however the run ends. So whoever starts next finds what a dead run
left, without a list that could be out of date.

All of it blocks, on purpose: nothing can be cancelled half way, and it happens before a run and after it.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

from backends._leftovers import end_marked
from protocols.errors import PortFailed

log = structlog.get_logger(__name__)

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - shared on purpose; the folders in it are this user's alone
_ENOUGH = 2**30  # bytes; a container often has 64 MiB there


@dataclass(frozen=True, kw_only=True)
class State:
    """A state folder, locked.

    Attributes:
        folder: This user's alone.
        lock: Descriptor that holds the lock.
    """

    folder: Path
    lock: int


def default_place() -> Path:
    """Return where bulk data lies unless the job says otherwise: shared memory, or the disk where that is small."""
    if os.access(_SHARED_MEMORY, os.W_OK) and shutil.disk_usage(_SHARED_MEMORY).free >= _ENOUGH:
        return _SHARED_MEMORY
    return Path(tempfile.gettempdir())


@contextmanager
def open_state(place: Path) -> Generator[State]:
    """Remove what dead runs left, and make a state folder, which is gone when the block ends.

    Raises:
        PortFailed: It cannot be made.
    """
    try:
        sweep(place)
        state = make_state(place)
    except OSError as exc:
        raise PortFailed(f"there is no place for bulk data in {place}: {exc}") from exc
    try:
        yield state
    finally:
        remove_state(state)


def make_state(place: Path) -> State:
    """Make and lock a state folder.

    Raises:
        OSError: It cannot be made.
    """
    made = Path(tempfile.mkdtemp(prefix=f"new-{_prefix()}", dir=place))
    lock = os.open(made, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    folder = made.rename(place / made.name.removeprefix("new-"))  # seen by others from now on, and locked
    return State(folder=folder, lock=lock)


def remove_state(state: State) -> None:
    """End what still carries the folder's name, and remove the folder."""
    try:
        _remove(state.folder)
    finally:
        os.close(state.lock)


def sweep(place: Path) -> None:
    """Remove what dead runs of this user left in a place; a run that lives holds its lock."""
    for folder in sorted({*place.glob(f"{_prefix()}*"), *_default_folders()}):
        lock = _lock_of_dead(folder)
        if lock is None:
            continue
        try:
            log.warning("run.reaped", folder=str(folder))
            _remove(folder)
        finally:
            os.close(lock)


def _default_folders() -> list[Path]:
    places = {_SHARED_MEMORY, Path(tempfile.gettempdir())}
    return [folder for place in places if place.is_dir() for folder in place.glob(f"{_prefix()}*")]


def _prefix() -> str:
    return f"conductor-{os.getuid()}-"


def _lock_of_dead(folder: Path) -> int | None:
    """Lock the folder of a dead run; None: its run lives, or it is not ours."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        if os.fstat(lock).st_uid == os.getuid():
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
    except OSError:
        pass
    os.close(lock)
    return None


def _remove(folder: Path) -> None:
    left = end_marked(str(folder))
    if left:
        log.error("processes.left", pids=left)
    shutil.rmtree(folder, ignore_errors=True)
