"""The form of a ledger's file: two tables, and how they are read by whoever has it open."""

import sqlite3
import zlib
from pathlib import Path

import msgspec

from backends.ledgers._sqlite.failures import means_damage
from backends.ledgers._sqlite.mark import Mark
from backends.ledgers._sqlite.rows import End, Row, unpack
from protocols.errors import CorruptLedger, UserError
from protocols.ledger import LedgerEvent
from protocols.messages import Message

FORMAT = 1
"""Of the file. The table ``head`` is the same in every format, so that a newer one is known as such."""

TABLES = (
    "CREATE TABLE head (format INTEGER NOT NULL, crc INTEGER NOT NULL, body BLOB NOT NULL) STRICT",
    "CREATE TABLE events (seq INTEGER PRIMARY KEY, crc INTEGER NOT NULL, body BLOB NOT NULL) STRICT",
)

_FETCHED = 32
"""Rows decoded at once: some milliseconds, in which no other thread runs. The memory of twice as many is asked of the
system for each page and given back, which costs a resume a tenth more."""


class Head(Message, frozen=True, kw_only=True):
    """What stands before the events.

    Attributes:
        file_id: Minted with the file, so that the mark of another that stood here before is known as such.
        base: Number of the last event that a compaction put away; the first row's events come after it.
    """

    file_id: str
    base: int

    def encoded(self) -> tuple[int, int, bytes]:
        """Return the row of the table ``head``."""
        body = msgspec.msgpack.encode(self)
        return FORMAT, zlib.crc32(body, FORMAT), body

    @property
    def start(self) -> End:
        """What the first row continues; its sum binds every event to this file and this compaction."""
        return End(seq=self.base, crc=self.encoded()[1])


def read_head(db: sqlite3.Connection, path: Path, mark: Mark | None) -> Head | None:
    """Read the head; None where the file was never made a ledger.

    Raises:
        CorruptLedger: It is not what was written, or it is gone although the mark says that events followed it.
        UserError: It is of a newer format.
    """
    if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        if mark is not None and mark.seq:
            raise CorruptLedger(f"the ledger {path} is damaged: {mark.seq} events were in it, and its tables are gone")
        return None
    damage = CorruptLedger(f"the head of the ledger {path}: not what was written")
    try:
        ((form, crc, body),) = db.execute("SELECT format, crc, body FROM head").fetchall()
        if zlib.crc32(body, form) != crc:
            raise damage
    except (TypeError, ValueError) as exc:  # no row, or not numbers and bytes
        raise damage from exc
    if form > FORMAT:
        raise UserError(
            f"the ledger {path} has format {form}, and this version knows up to {FORMAT}; "
            "use the version that wrote it, or a newer one"
        )
    return msgspec.msgpack.decode(body, type=Head)


def read_end(db: sqlite3.Connection, start: End, path: Path) -> End:
    """Find where the record ends, and check its last row.

    Raises:
        CorruptLedger: The last row is not what was written.
    """
    rows: list[Row] = db.execute("SELECT seq, crc, body FROM events ORDER BY seq DESC LIMIT 2").fetchall()
    if not rows:
        return start
    before = End(seq=rows[1][0], crc=rows[1][1]) if len(rows) > 1 else start
    _, end = unpack(rows[:1], before, path)
    return end


def read_page(db: sqlite3.Connection, start: End, end: End, after: int, path: Path) -> list[LedgerEvent]:
    """Read and check some of the events behind the first ``after``; none where the record ends.

    Args:
        db: Where it stands.
        start: Before its first event.
        end: Its last one.
        after: How many are not wanted.
        path: Of the file.

    Raises:
        CorruptLedger, UserError: As ``read_events``.
    """
    wanted = start.seq + after
    if wanted >= end.seq:
        return []
    before = start
    try:
        for seq, crc in db.execute("SELECT seq, crc FROM events WHERE seq <= ? ORDER BY seq DESC LIMIT 1", (wanted,)):
            before = End(seq=seq, crc=crc)
        page = "SELECT seq, crc, body FROM events WHERE seq > ? ORDER BY seq LIMIT ?"
        rows: list[Row] = db.execute(page, (before.seq, _FETCHED)).fetchall()
    except sqlite3.DatabaseError as exc:
        if not means_damage(exc):
            raise
        raise CorruptLedger(f"the ledger {path} is damaged after event {before.seq}: {exc}") from exc
    if not rows:
        raise CorruptLedger(
            f"the ledger {path} is damaged: no event is found after {before.seq}, and {end.seq} was there"
        )
    events, _ = unpack(rows, before, path)
    return events[wanted - before.seq :]


def read_events(db: sqlite3.Connection, start: End, path: Path) -> tuple[list[LedgerEvent], End]:
    """Read and check all events; returns where the record ends as well.

    Raises:
        CorruptLedger: One of them is not what was written, or one is missing between two others.
        UserError: One of them is of a newer version.
    """
    events: list[LedgerEvent] = []
    end = start
    try:
        cursor = db.execute("SELECT seq, crc, body FROM events ORDER BY seq")
        while rows := cursor.fetchmany(_FETCHED):
            fresh, end = unpack(rows, end, path)
            events += fresh
    except sqlite3.DatabaseError as exc:
        if not means_damage(exc):
            raise
        raise CorruptLedger(f"the ledger {path} is damaged after event {end.seq}: {exc}") from exc
    return events, end
