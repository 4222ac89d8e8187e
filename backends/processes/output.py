"""What a worker writes to its standard streams: kept for people, and its end for whoever asks why it died.

Warnings and errors of its adapters are logged here once more, so that they stand in the log of the run.
"""

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import anyio
import anyio.to_thread
import structlog

from backends._log_lines import LONGEST, may_begin, warning_in
from protocols.messages import WorkerId

log = structlog.get_logger(__name__)

_LONGEST = 8192  # bytes of a line, but for those that are logged
_PASSED_ON = 1_000  # warnings of one worker
_LINES = 30
_READ = 65536


class Output:
    """Reads the lines of one worker and hands them on with its name before each.

    Args:
        descriptor: The reading end of a pipe; the caller closes it.
        worker_id: The name.
        write: Takes text, in a thread; where it fails, lines are lost and nothing else.
    """

    def __init__(self, descriptor: int, worker_id: WorkerId, write: Callable[[str], None]) -> None:
        self._descriptor = descriptor
        self._worker_id = worker_id
        self._write = write
        self._last: deque[str] = deque(maxlen=_LINES)
        self._passed_on = 0

    @property
    def end(self) -> str:
        """The last lines, or nothing."""
        return "\n".join(self._last)

    async def pump(self) -> None:
        """Read to the end: nobody has the writing end any more."""
        rest = b""
        while True:
            await anyio.wait_readable(self._descriptor)
            data = os.read(self._descriptor, _READ)
            *lines, rest = (rest + data).split(b"\n")
            if rest and (len(rest) > (LONGEST if may_begin(rest) else _LONGEST) or not data):
                lines.append(rest)
                rest = b""
            await self._keep(line.decode(errors="replace") for line in lines)
            if not data:
                return

    async def _keep(self, lines: Iterable[str]) -> None:
        kept = [line.rstrip("\r") for line in lines]
        self._last.extend(line for line in kept if line)
        for line in kept:
            self._pass_on(line)
        text = "".join(f"{self._worker_id} | {line}\n" for line in kept)
        if text:
            with suppress(OSError, ValueError):  # a full disk, a closed stream
                await anyio.to_thread.run_sync(self._write, text)

    def _pass_on(self, line: str) -> None:
        found = warning_in(line)
        if found is None or self._passed_on > _PASSED_ON:
            return
        self._passed_on += 1
        if self._passed_on > _PASSED_ON:
            log.warning("worker.warnings_left_out", worker=self._worker_id, after=_PASSED_ON)
            return
        level, event, facts = found
        getattr(log, level)(event, **{**facts, "worker": self._worker_id})


def to_stderr(text: str) -> None:
    """Write to standard error."""
    sys.stderr.write(text)
    sys.stderr.flush()


class LogFile:
    """Appends to a file in the run's folder, which it makes.

    Args:
        run_dir: The folder of the run.
        worker_id: Names the file: ``logs/rollout-0.log`` for ``rollout/0``.
    """

    def __init__(self, run_dir: str, worker_id: WorkerId) -> None:
        self._path = Path(run_dir) / "logs" / f"{worker_id.replace('/', '-')}.log"

    def write(self, text: str) -> None:
        """Append; OSError where that fails."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(text)
