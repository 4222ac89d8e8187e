"""A live display that asks its own run where it stands, over the run's socket, as anybody could."""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from conductor.control.client import ask
from conductor.control.messages import Request
from conductor.core.status import RunStatus
from protocols.errors import PortFailed

_EVERY_S = 1.0
_PATIENCE_S = 1.0


@contextmanager
def watching(run_dir: str | None, look: Callable[[RunStatus], None] | None) -> Generator[None]:
    """Give ``look`` the status of the run in a folder every second, from a thread of its own, while the block runs.

    Args:
        run_dir: The folder; None: nothing is asked.
        look: Takes a status, and never raises; None: nothing is asked.
    """
    if run_dir is None or look is None:
        yield
        return
    over = threading.Event()
    thread = threading.Thread(target=_watch, args=(Path(run_dir), look, over), name="live status", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(2 * _PATIENCE_S)


def _watch(run_dir: Path, look: Callable[[RunStatus], None], over: threading.Event) -> None:
    while not over.wait(_EVERY_S):
        try:
            reply = ask(run_dir, Request(command="status"), patience_s=_PATIENCE_S)
        except PortFailed:
            continue  # its loop is blocked, or it has just ended
        if reply is not None and reply.status is not None:
            look(reply.status)
