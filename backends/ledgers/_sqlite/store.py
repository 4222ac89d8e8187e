"""The ledger's file, open for writing. Everything here blocks; one thread calls it."""

import sqlite3
import uuid
from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Literal

import msgspec
import structlog

from backends.ledgers._sqlite.failures import translated
from backends.ledgers._sqlite.form import TABLES, Head, read_end, read_head, read_page
from backends.ledgers._sqlite.lock import held
from backends.ledgers._sqlite.mark import MarkWriter, count_lost, mark_path, open_mark, read_mark
from backends.ledgers._sqlite.rows import End, pack
from protocols.errors import CorruptLedger, PortFailed, UserError
from protocols.ledger import LedgerEvent

log = structlog.get_logger(__name__)

Synchronous = Literal["normal", "full"]

_INSERT = "INSERT INTO events VALUES (?, ?, ?)"
_PATIENCE_MS = 5000
"""How long a commit waits for a lock that another program holds: a reader's, for a moment, or a person's."""


class Store:
    """A ledger that this process holds the lock of.

    Args:
        db: The connection, in autocommit mode.
        path: Of the file.
        mark: Of the last durable event.
        head, end: What stands in the file now.
        lost: Events that had been durable and are not there.
    """

    def __init__(
        self, db: sqlite3.Connection, path: Path, *, mark: MarkWriter, head: Head, end: End, lost: int
    ) -> None:
        self._db = db
        self._path = path
        self._mark = mark
        self._head = head
        self._end = end
        self._failure: str | None = None
        self.lost = lost

    def append(self, events: Sequence[bytes]) -> None:
        """Write encoded events, all or none. After one failure every later call fails.

        Raises:
            PortFailed, CorruptLedger: They are not written.
        """
        self._refuse_after_failure()
        rows, end = pack(events, self._end)
        try:
            with translated(self._path):
                if len(rows) == 1:  # a transaction by itself: every statement less is a wait less for Python's lock
                    self._db.execute(_INSERT, rows[0])
                else:
                    with _transaction(self._db):
                        self._db.executemany(_INSERT, rows)
                self._end = end
                self._mark.move(end.seq)
        except (PortFailed, CorruptLedger) as exc:
            self._failure = exc.message
            raise

    def replay(self, after: int) -> tuple[LedgerEvent, ...]:
        """Return events behind the first ``after``; see ``LedgerPort.replay``."""
        with translated(self._path):
            return tuple(read_page(self._db, self._head.start, self._end, after, self._path))

    def compact(self, events: Sequence[bytes]) -> None:
        """Put encoded events in the place of all others, at once or not at all; the file shrinks.

        Raises:
            PortFailed, CorruptLedger: The record is what it was.
        """
        self._refuse_after_failure()
        head = msgspec.structs.replace(self._head, base=self._end.seq)
        rows, end = pack(events, head.start)
        with translated(self._path):
            with _transaction(self._db):
                self._db.execute("DELETE FROM events")
                self._db.execute("UPDATE head SET format = ?, crc = ?, body = ?", head.encoded())
                self._db.executemany(_INSERT, rows)
            self._head, self._end = head, end
            self._shrink()
            self._mark.move(end.seq)

    def _shrink(self) -> None:
        """Give free pages back. Best effort: the record is right without it, and no reader is waited for."""
        try:
            self._db.execute("PRAGMA busy_timeout = 0")
            self._db.execute("VACUUM")
            _checkpoint(self._db)
        except sqlite3.Error as exc:
            log.warning("ledger.not_shrunk", path=str(self._path), error=str(exc))
        finally:
            self._db.execute(f"PRAGMA busy_timeout = {_PATIENCE_MS}")

    def _refuse_after_failure(self) -> None:
        if self._failure is not None:
            raise PortFailed(f"nothing is written after a failure, or the record would have a gap: {self._failure}")


@contextmanager
def open_store(path: Path, *, synchronous: Synchronous, resume: bool) -> Generator[Store]:
    """Open a ledger and hold its lock until the block ends.

    Args:
        path: Of the file. A new run makes it, a resumed one must find it.
        synchronous: ``full`` waits for the disk at each commit.
        resume: Whether events may stand in it.

    Raises:
        UserError: Another controller holds it, it cannot be written to, or ``resume`` does not fit what is there.
        CorruptLedger: It is damaged.
        PortFailed: The disk is full or failing.
    """
    with ExitStack() as stack:
        with translated(path, opening=True):
            if resume and not path.exists():
                raise _nothing_to_resume(path)
            stack.enter_context(held(path))
            if not path.exists():
                mark_path(path).unlink(missing_ok=True)  # of a file that stood here before
            known = read_mark(path)
            db = stack.enter_context(closing(_connect(path, synchronous)))
            head = read_head(db, path, known)
            if head is None and resume:
                raise _nothing_to_resume(path)
            head = head or _create(db)
            end = read_end(db, head.start, path)
            lost = count_lost(known, head.file_id, end.seq)
            if not resume and (end.seq or lost):
                raise _held_by_a_run(path)
            mark = stack.enter_context(open_mark(path, head.file_id))
        yield Store(db, path, mark=mark, head=head, end=end, lost=lost)


def _connect(path: Path, synchronous: Synchronous) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, timeout=_PATIENCE_MS / 1000)
    db.text_factory = bytes  # a flipped bit can make a text of a blob: bytes all the same, to be judged by their sum
    db.execute("PRAGMA journal_mode = WAL")
    db.execute(f"PRAGMA synchronous = {synchronous}")
    with _transaction(db):  # a file that cannot be written to says so now
        pass
    return db


def _create(db: sqlite3.Connection) -> Head:
    head = Head(file_id=uuid.uuid4().hex, base=0)
    with _transaction(db):
        for table in TABLES:
            db.execute(table)
        db.execute("INSERT INTO head VALUES (?, ?, ?)", head.encoded())
    _checkpoint(db)  # so that a damaged log can take events with it, but never the head
    return head


def _nothing_to_resume(path: Path) -> UserError:
    return UserError(f"{path.parent} holds no record of a run ({path.name}); name the folder of a run that was begun")


def _held_by_a_run(path: Path) -> UserError:
    folder = path.parent
    return UserError(
        f"{folder} holds the record of a run; continue it with `conductor resume {folder}`, or choose another run_dir"
    )


def _checkpoint(db: sqlite3.Connection) -> None:
    """Bring what stands in the write-ahead log into the file; a reader may hold it up until the next time."""
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


@contextmanager
def _transaction(db: sqlite3.Connection) -> Generator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # SQLite may have ended it by itself
            db.execute("ROLLBACK")
        raise
