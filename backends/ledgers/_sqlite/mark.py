"""A file beside the ledger with the number of the last event that was durable.

SQLite drops a damaged end of its write-ahead log without a word, and says that all is well. Where the
mark is ahead of the ledger, events were lost, and it says how many.
"""

import os
import struct
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

log = structlog.get_logger(__name__)

_BODY = struct.Struct(">16sQ")
_CRC = struct.Struct(">I")


@dataclass(frozen=True, kw_only=True)
class Mark:
    """Event ``seq`` of the ledger ``file_id`` (32 hexadecimal digits) was durable."""

    file_id: str
    seq: int


def mark_path(ledger: Path) -> Path:
    """Return where the mark of a ledger lies."""
    return Path(f"{ledger}.mark")


def read_mark(ledger: Path) -> Mark | None:
    """Return the mark of a ledger; None where there is none, or a torn one, which proves nothing."""
    try:
        data = mark_path(ledger).read_bytes()
    except FileNotFoundError:
        return None
    body, crc = data[: _BODY.size], data[_BODY.size : _BODY.size + _CRC.size]
    if len(body) < _BODY.size or _CRC.pack(zlib.crc32(body)) != crc:
        log.warning("ledger.mark_torn", path=str(mark_path(ledger)))
        return None
    file, seq = _BODY.unpack(body)
    return Mark(file_id=file.hex(), seq=seq)


def count_lost(mark: Mark | None, file_id: str, last: int) -> int:
    """Return how many events a mark knows of beyond ``last``, the last one that is there."""
    return max(0, mark.seq - last) if mark is not None and mark.file_id == file_id else 0


class MarkWriter:
    """Moves the mark, in one system call."""

    def __init__(self, descriptor: int, file_id: str) -> None:
        self._descriptor = descriptor
        self._file = bytes.fromhex(file_id)

    def move(self, seq: int) -> None:
        """Set the mark to ``seq``."""
        body = _BODY.pack(self._file, seq)
        os.pwrite(self._descriptor, body + _CRC.pack(zlib.crc32(body)), 0)


@contextmanager
def open_mark(ledger: Path, file_id: str) -> Generator[MarkWriter]:
    """Open the mark for writing; it stays as it is until it is moved."""
    descriptor = os.open(mark_path(ledger), os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        yield MarkWriter(descriptor, file_id)
    finally:
        os.close(descriptor)
