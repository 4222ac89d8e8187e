"""Becomes a user's program that ends with its parent: ``python _exec.py PARENT PROGRAM ARGUMENT...``."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask to be killed with the parent, and become the program, which keeps that."""
    parent, *command = sys.argv[1:]
    if sys.platform == "linux":  # elsewhere it outlives a killed parent
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(parent):
            sys.exit(1)  # it died before it was asked for
    os.execvp(command[0], command)  # noqa: S606 - the job's own program, and no shell


if __name__ == "__main__":
    main()
