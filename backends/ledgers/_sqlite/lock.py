"""One controller at a time. The kernel gives the lock back when its holder dies, however it dies."""

import fcntl
import os
import socket
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from protocols.errors import UserError


@contextmanager
def held(ledger: Path) -> Generator[None]:
    """Hold the lock of a ledger, a file beside it, until the block or the process ends.

    Raises:
        UserError: Somebody else holds it.
        OSError: The lock's file cannot be written.
    """
    descriptor = os.open(f"{ledger}.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _take(descriptor, ledger)
        try:
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing would leave it with a process that was forked meanwhile
    finally:
        os.close(descriptor)


def _take(descriptor: int, ledger: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 1024, 0).decode(errors="replace") or "one that is just starting"
        raise UserError(
            f"another controller writes the ledger {ledger}: {holder}; wait until it ends or stop it, "
            "or choose another run_dir"
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
