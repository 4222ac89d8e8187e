"""The process in which rewards are called: ``python -m backends.graders._child FUNCTION JOB_DIR``.

Frames (4 bytes of length, big-endian, then MessagePack) come on stdin and go to stdout: at first why the
function cannot be loaded (or nil), then for each ``Task`` one grade or fault a completion, each as soon
as it is known. The user's code runs in the main thread, where ``signal.alarm`` works.
"""

import ctypes
import os
import signal
import sys
from typing import IO

import msgspec

from backends._functions import FunctionNotFound, find_function
from backends.graders._reward import Reward, Task

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve until stdin ends."""
    _die_with_parent()
    tasks, answers = _take_streams()
    decoder = msgspec.msgpack.Decoder(Task)
    try:
        reward = Reward(find_function(*sys.argv[1:]))
    except FunctionNotFound as exc:
        _send(answers, str(exc))
        return
    _send(answers, None)
    while head := tasks.read(4):
        task = decoder.decode(tasks.read(int.from_bytes(head)))
        for index in range(len(task.completions)):
            _send(answers, reward.grade(task, index))


def frame(message: object) -> bytes:
    """Encode one message with its length before it."""
    data = msgspec.msgpack.encode(message)
    return len(data).to_bytes(4) + data


def _send(answers: IO[bytes], message: object) -> None:
    answers.write(frame(message))
    answers.flush()


def _take_streams() -> tuple[IO[bytes], IO[bytes]]:
    """Keep stdin and stdout for the frames: user code reads nothing, and what it prints goes to stderr."""
    tasks, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    return tasks, answers


def _die_with_parent() -> None:
    if sys.platform == "linux":  # elsewhere a reward that hangs outlives a killed parent
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
