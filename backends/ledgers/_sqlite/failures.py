"""What errors of SQLite and of the system mean to a run."""

import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from protocols.errors import ConductorError, CorruptLedger, PortFailed, UserError

_DAMAGED = frozenset(
    {
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_FORMAT,
        sqlite3.SQLITE_CONSTRAINT,  # a number that is taken
        sqlite3.SQLITE_MISMATCH,
        sqlite3.SQLITE_TOOBIG,
        sqlite3.SQLITE_ERROR,  # our statements are fixed: what they name is not there
    }
)
_REFUSED = frozenset({sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH})
_MENDS = {
    sqlite3.SQLITE_FULL: "free some space, then resume the run",
    sqlite3.SQLITE_BUSY: "another program has it locked; close that, then resume the run",
    sqlite3.SQLITE_LOCKED: "another program has it locked; close that, then resume the run",
}


@contextmanager
def translated(path: Path, *, opening: bool = False) -> Generator[None]:
    """Turn what SQLite and the system raise in the block into the project's errors.

    Args:
        path: The ledger's file.
        opening: Nothing has been done yet, so that a refusal is the user's to mend.

    Raises:
        CorruptLedger: The file is not what was written.
        UserError: ``opening``, and the file or its folder refuses it.
        PortFailed: Anything else: a full disk, a broken one.
    """
    try:
        yield
    except sqlite3.Error as exc:
        raise _meaning_of_sqlite(exc, path, opening=opening) from exc
    except OSError as exc:
        raise _meaning_of_system(exc, path, opening=opening) from exc
    except UnicodeDecodeError as exc:  # SQLite's message quotes what it found in the file
        raise CorruptLedger(f"the ledger {path} is damaged: {exc}") from exc


def means_damage(error: sqlite3.Error) -> bool:
    """Say whether the file is not what was written; else its disk, its folder or its users are the trouble."""
    return _code(error) in _DAMAGED


def means_refusal(error: sqlite3.Error) -> bool:
    """Say whether SQLite may not do at this place what it was asked for."""
    return _code(error) in _REFUSED


def _code(error: sqlite3.Error) -> int:
    """Return the class of an error without what SQLite adds to it."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_INTERNAL) & 0xFF


def _meaning_of_sqlite(error: sqlite3.Error, path: Path, *, opening: bool) -> ConductorError:
    if means_damage(error):
        return CorruptLedger(f"the ledger {path} is damaged: {error}")
    if opening and means_refusal(error):
        return _inaccessible(path, error)
    mend = _MENDS.get(_code(error))
    return PortFailed(f"the ledger {path} failed: {error}" + (f"; {mend}" if mend else ""))


def _meaning_of_system(error: OSError, path: Path, *, opening: bool) -> ConductorError:
    if opening and isinstance(error, PermissionError | FileNotFoundError | NotADirectoryError | IsADirectoryError):
        return _inaccessible(path, error)
    return PortFailed(f"the ledger {path} failed: {error}")


def _inaccessible(path: Path, error: Exception) -> UserError:
    return UserError(f"the ledger {path} cannot be opened: {error}; give access to its folder, or name another run_dir")
