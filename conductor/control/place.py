"""Where the socket of a run is: in its folder, or where its path would be too long, in one that the folder names.

Plain blocking functions; whoever calls them does so off the event loop.
"""

import os
import shutil
import socket
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from protocols.messages import Message

SOCKET = "control.sock"
POINTER = "control.json"
LONGEST = 107
"""Bytes of the path of a Unix socket that Linux takes."""

_BACKLOG = 16
_LIVELY_S = 1.0


class Pointer(Message, frozen=True, kw_only=True):
    """Names the socket of a run, where it is not in the run's folder."""

    socket: str


class Taken(Exception):
    """Somebody answers there already."""


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A socket that listens.

    Attributes:
        path: Where.
        inode: Of its file: another run's that took its place is not ours to remove.
        pointer: The file in the run's folder that names it; None: it is in that folder itself.
    """

    listening: socket.socket
    path: Path
    inode: int
    pointer: Path | None


def find(run_dir: Path) -> Path | None:
    """Return where the socket of a run must be, if it has one."""
    path = run_dir.resolve() / SOCKET
    if _fits(path):
        return path
    try:
        return Path(msgspec.json.decode((run_dir / POINTER).read_bytes(), type=Pointer).socket)
    except (OSError, msgspec.MsgspecError):
        return None


def bind(run_dir: Path) -> Bound:
    """Listen, for this user alone; what a dead run left is removed.

    Raises:
        Taken: A living run listens there.
        OSError: It cannot be done.
    """
    path, pointer = run_dir.resolve() / SOCKET, None
    if _answers(find(run_dir)):
        raise Taken
    if not _fits(path):
        path, pointer = _short(), run_dir / POINTER
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(str(path))
        path.chmod(0o600)  # before anybody can connect, for nobody listens yet
        listening.listen(_BACKLOG)
        listening.setblocking(False)
        if pointer is not None:
            pointer.write_bytes(msgspec.json.encode(Pointer(socket=str(path))) + b"\n")
    except OSError:
        listening.close()
        raise
    return Bound(listening=listening, path=path, inode=path.stat().st_ino, pointer=pointer)


def unbind(bound: Bound) -> None:
    """Remove what ``bind`` made."""
    bound.listening.close()
    with suppress(OSError):
        if bound.path.stat().st_ino == bound.inode:
            bound.path.unlink()
    if bound.pointer is not None:
        shutil.rmtree(bound.path.parent, ignore_errors=True)
        bound.pointer.unlink(missing_ok=True)


def _fits(path: Path) -> bool:
    return len(os.fsencode(path)) <= LONGEST


def _short() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="conductor-"))
    if not _fits(folder / SOCKET):
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="conductor-", dir="/tmp"))
    return folder / SOCKET


def _answers(path: Path | None) -> bool:
    if path is None:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client, suppress(OSError):
        client.settimeout(_LIVELY_S)
        client.connect(str(path))
        return True
    return False
