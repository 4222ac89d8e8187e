"""Finding and ending the processes that belong to somebody, whoever their parent is by now.

What a worker starts inherits its environment, and with it ``MARK``. That names a folder that no other run ever has, so
nothing foreign is found, whatever became of its number; and what left the worker's group, or outlived the worker, is
found all the same. Plain blocking functions.

Between its start and its first instruction a program has no environment to be read: for some ten milliseconds, a
quarter of a second on a busy machine. It is waited for, or what was started last would be missed.
"""

import os
import select
import signal
import time
from contextlib import suppress
from pathlib import Path

MARK = "CONDUCTOR_WORKER"
"""Variable of the environment: the state folder of the run, and the number of the launch."""

_GONE_S = 5.0
_NEW_S = 2.0
_AGAIN_S = 0.002  # until a program that is being started is looked at again
_PROC = Path("/proc")


def end_marked(*marks: str) -> list[int]:
    """Kill every process of this user whose mark starts with one of ``marks``, and wait until it is gone.

    Returns:
        Those that are not gone within a few seconds.
    """
    left: list[int] = []
    deadline = time.monotonic() + _GONE_S
    while found := _marked(marks, deadline):  # again, for what was started meanwhile
        try:
            for process in found.values():
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(process, signal.SIGKILL)
            left = [pid for pid, process in found.items() if not _ends(process, deadline)]
        finally:
            for process in found.values():
                os.close(process)
        if left:
            break
    return left


def _marked(marks: tuple[str, ...], deadline: float) -> dict[int, int]:
    """Return a descriptor for each marked process, which stays that process even if its number is used again."""
    found: dict[int, int] = {}
    for entry in _PROC.iterdir():
        if not entry.name.isdecimal():
            continue
        with suppress(OSError):
            process = os.pidfd_open(int(entry.name))
            if carries(int(entry.name), marks, deadline):
                found[int(entry.name)] = process
            else:
                os.close(process)
    return found


def carries(pid: int, marks: tuple[str, ...], deadline: float) -> bool:
    """Return whether the mark of a process starts with one of some; a process that is being started is waited for."""
    process, starts = _PROC / str(pid), tuple(f"{MARK}={mark}".encode() for mark in marks)
    try:
        while not (environ := (process / "environ").read_bytes()) and _is_being_started(process):
            if time.monotonic() >= deadline:
                return False
            time.sleep(_AGAIN_S)
        if not environ:  # it may have begun between the two looks
            environ = (process / "environ").read_bytes()
        return any(variable.startswith(starts) for variable in environ.split(b"\0"))
    except OSError:  # another user's, or gone
        return False


def _is_being_started(process: Path) -> bool:
    """Return whether a process is new and has memory, but nothing in the place of its environment: proc_pid_stat(5).

    One that is not new was started with an empty environment.
    """
    fields = (process / "stat").read_bytes().rpartition(b")")[2].split()  # from the third on
    began_s = int(fields[22 - 3]) / os.sysconf("SC_CLK_TCK")
    memory, environment, end = (int(fields[number - 3]) for number in (23, 50, 51))
    return memory > 0 and end <= environment and time.clock_gettime(time.CLOCK_BOOTTIME) - began_s < _NEW_S


def _ends(process: int, deadline: float) -> bool:
    ready, _, _ = select.select([process], [], [], max(0.0, deadline - time.monotonic()))
    return bool(ready)
