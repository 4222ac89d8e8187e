"""Forked children: bounded in memory, silent, and gone with whatever they did to this process."""

import os
import resource
import traceback
from collections.abc import Callable

MEMORY_BYTES = 4 << 30

FAILED = 70
"""Exit status of a child whose work raised; it has said what."""


def fork(work: Callable[[], int]) -> int:
    """Run ``work`` in a child that exits with what it returns; returns the child.

    No thread may run here: a lock that one holds would be held in the child for ever.
    """
    child = os.fork()
    if child == 0:
        os._exit(_outcome(work))
    return child


def _outcome(work: Callable[[], int]) -> int:
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        return work()
    except BaseException:  # noqa: BLE001 - nothing of this process may go on in the child
        traceback.print_exc()
        return FAILED
