"""Reading a record that others may write, or that lies where nothing can be written."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from backends.ledgers._sqlite.failures import means_refusal, translated
from backends.ledgers._sqlite.form import read_events, read_head
from backends.ledgers._sqlite.mark import count_lost, read_mark
from protocols.errors import UserError
from protocols.ledger import Record


def read_record(path: Path) -> Record:
    """Read the whole record in a ledger's file, as it stands at one moment. The file stays as it is.

    Raises:
        CorruptLedger: An event is not what was written; it is named by its number.
        UserError: There is no record, or it cannot be read, or it is of a newer version.
    """
    with translated(path, opening=True):
        if not path.exists():
            raise UserError(f"there is no ledger {path}; name the folder of a run that keeps one")
        if _has_log(path):
            return _read_with_log(path)
        record = _read(path, path, "immutable=1")  # or SQLite would leave a log of its own
        # a controller that came meanwhile may have changed the file under an immutable connection
        return _read_with_log(path) if _has_log(path) else record


def _read_with_log(path: Path) -> Record:
    try:
        return _read(path, path, "mode=ro")
    except sqlite3.OperationalError as exc:
        if not means_refusal(exc):
            raise
    # the log of a run that was killed, in a folder where SQLite may not make the index that it needs
    with TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        shutil.copyfile(path, copy)
        shutil.copyfile(_log_path(path), _log_path(copy))
        return _read(path, copy, "mode=rw")


def _log_path(path: Path) -> Path:
    return Path(f"{path}-wal")


def _has_log(path: Path) -> bool:
    log = _log_path(path)
    return log.exists() and log.stat().st_size > 0


def _read(path: Path, file: Path, how: str) -> Record:
    """Read the ledger ``path`` out of ``file``, which SQLite opens by the parameter ``how``."""
    mark = read_mark(path)  # before the moment at which the file is read: what is written meanwhile is no loss
    with closing(sqlite3.connect(f"{file.absolute().as_uri()}?{how}", uri=True, isolation_level=None)) as db:
        db.text_factory = bytes
        db.execute("BEGIN")
        head = read_head(db, path, mark)
        if head is None:
            raise UserError(f"the ledger {path} holds nothing yet; wait until the run has begun")
        events, end = read_events(db, head.start, path)
    return Record(events=tuple(events), lost=count_lost(mark, head.file_id, end.seq))
