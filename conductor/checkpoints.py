"""Checkpoints on the disk: written aside, complete when their marker lies beside the files, then renamed.

Plain blocking functions; whoever calls them does so off the event loop.
"""

import os
import shutil
import tempfile
import zlib
from pathlib import Path

import msgspec

from protocols.errors import UserError
from protocols.messages import Message, WeightVersion

FOLDER = "checkpoints"
MARKER = "checkpoint.json"
UNKNOWN = "unknown-"
"""Before the name of a checkpoint that the record does not know: nobody can say which groups are in it."""

_CHUNK = 1 << 22


class FileSum(Message, frozen=True, kw_only=True):
    """What a file of a checkpoint must be: its bytes and their CRC-32."""

    size: int
    crc32: int


class Marker(Message, frozen=True, kw_only=True):
    """Makes a checkpoint complete; written last.

    Attributes:
        run_id: Of the record that it belongs to.
        version: The trainer's version in it.
        admitted: Groups admitted when it began: where the record and the prompts stood.
        files: Every file but this one, by its path in the folder.
    """

    run_id: str
    version: WeightVersion
    admitted: int
    files: dict[str, FileSum]


def folder_of(run_dir: str) -> Path:
    """Return where the checkpoints of a run lie."""
    return Path(run_dir) / FOLDER


def place_of(folder: Path, version: WeightVersion) -> Path:
    """Return where a whole checkpoint lies."""
    return folder / f"step-{version}"


def aside(folder: Path, version: WeightVersion) -> Path:
    """Make an empty folder to write a checkpoint into."""
    folder.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f".step-{version}.", dir=folder))


def seal(written: Path, *, run_id: str, version: WeightVersion, admitted: int) -> Path:
    """Complete a checkpoint that lies aside: all of it is on the disk before its name is.

    Returns:
        Its folder, ``step-N``.
    """
    paths = sorted(path for path in written.rglob("*") if path.is_file())
    files = {str(path.relative_to(written)): _synced(path) for path in paths}
    marker = Marker(run_id=run_id, version=version, admitted=admitted, files=files)
    path = written / MARKER
    path.write_bytes(msgspec.json.format(msgspec.json.encode(marker), indent=2) + b"\n")
    _synced(path)
    _sync_folder(written)
    written.chmod(0o755)
    target = place_of(written.parent, version)
    written.rename(target)
    _sync_folder(written.parent)
    return target


def complete(folder: Path) -> dict[WeightVersion, Path]:
    """Return every checkpoint that has its marker, the oldest first."""
    found = {path.name.removeprefix("step-"): path for path in folder.glob("step-*") if (path / MARKER).exists()}
    return {WeightVersion(number): found[str(number)] for number in sorted(int(n) for n in found if n.isdecimal())}


def remove(folder: Path) -> None:
    """Remove a checkpoint, if it is there; the marker goes first, so that half of one is never taken for a whole."""
    if folder.exists():
        (folder / MARKER).unlink(missing_ok=True)
        shutil.rmtree(folder)


def set_aside(folder: Path) -> Path:
    """Take a whole checkpoint out of the way without destroying it."""
    target = folder.with_name(f"{UNKNOWN}{folder.name}")
    if target.exists():
        shutil.rmtree(target)
    return folder.rename(target)


def remove_leftovers(folder: Path) -> None:
    """Remove what a life of the run that was cut off left aside or half removed."""
    for path in folder.glob(".step-*"):
        shutil.rmtree(path)
    for path in folder.glob("step-*"):
        if not (path / MARKER).exists():
            shutil.rmtree(path)


def verify(folder: Path) -> Marker:
    """Compare every file of a checkpoint with its marker.

    Raises:
        UserError: One is missing or damaged; it is named.
    """
    try:
        marker = msgspec.json.decode((folder / MARKER).read_bytes(), type=Marker)
        if folder.name != f"step-{marker.version}":
            raise _damaged(folder / MARKER, f"it is of version {marker.version}")
        for name, expected in marker.files.items():
            if (found := _sum(folder / name)) != expected:
                what = f"{found.size} bytes with CRC-32 {found.crc32:08x}"
                raise _damaged(folder / name, f"it has {what}, not {expected.size} with {expected.crc32:08x}")
    except msgspec.MsgspecError as exc:
        raise _damaged(folder / MARKER, str(exc)) from exc
    except (OSError, ValueError) as exc:  # ValueError: a name that no file can have
        raise _damaged(folder, str(exc)) from exc
    return marker


def _damaged(path: Path, why: str) -> UserError:
    mend = "restore it, or remove the folder of the checkpoint to go on from the one before it"
    return UserError(f"{path} is damaged: {why}; {mend}")


def _sum(path: Path) -> FileSum:
    size, crc32 = 0, 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            size, crc32 = size + len(chunk), zlib.crc32(chunk, crc32)
    return FileSum(size=size, crc32=crc32)


def _synced(path: Path) -> FileSum:
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return _sum(path)


def _sync_folder(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
