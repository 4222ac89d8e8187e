"""Metrics as JSON lines in the run's folder: ``{"step": 1, "metrics": {...}}``."""

import errno
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
import structlog
from anyio.lowlevel import checkpoint
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from protocols.adapters import Host
from protocols.aio import open_tasks, owned
from protocols.errors import Problem
from protocols.messages import Message
from protocols.sections import Site
from protocols.tracking import StepRecord, TrackerPort

log = structlog.get_logger()

FILE = "metrics.jsonl"
_KEPT = 10_000  # lines that wait for a disk that hangs or refuses them
_FLUSH_DEADLINE_S = 10.0


class Config(Message, frozen=True, kw_only=True):
    """``[[trackers]] kind = "jsonl"`` has no options. Without a run folder nothing is written."""


class JsonlTracker:
    """Takes records at once; a task of its own brings them to the disk.

    Args:
        lines: To that task; None throws records away.
        path: The file, for ``rewind``.
    """

    def __init__(self, lines: MemoryObjectSendStream[bytes] | None, path: Path | None = None) -> None:
        self._lines = lines
        self._path = path

    async def log(self, record: StepRecord) -> None:
        """Take one record; see ``TrackerPort.log``."""
        await checkpoint()
        if self._lines is None:
            return
        try:
            self._lines.send_nowait(msgspec.json.encode(record) + b"\n")
        except (anyio.WouldBlock, anyio.BrokenResourceError) as exc:
            log.warning("metrics.lost", step=record.step, error=type(exc).__name__)

    async def rewind(self, step: int) -> int:
        """Cut the file behind ``step``, and a line that a kill tore; see ``TrackerPort.rewind``."""
        if self._path is None:
            await checkpoint()
            return step
        try:
            return await anyio.to_thread.run_sync(_cut_behind, self._path, step)
        except OSError as exc:
            log.warning("metrics.rewind_failed", path=str(self._path), error=str(exc))
            return step


class Writer:
    """Appends lines to a file. A refusal is reported once, and tried again with the next line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._waiting: list[bytes] = []
        self._refused = False
        self._patience = anyio.CancelScope(shield=True)  # whoever opened the writer gives it up after a while
        self.ended = anyio.Event()

    async def run(self, lines: MemoryObjectReceiveStream[bytes]) -> None:
        """Write until the stream ends, or until ``give_up``; a cancellation stops nothing before.

        It would leave the thread that writes behind, and its lines would be written again.
        """
        try:
            with self._patience, lines:
                async for line in lines:
                    self._waiting.append(line)
                    await self._flush()
                if self._waiting:
                    await self._flush()
        finally:
            self.ended.set()

    def give_up(self) -> None:
        """Wait no longer for a disk that hangs."""
        self._patience.cancel()

    async def _flush(self) -> None:
        try:
            await anyio.to_thread.run_sync(_append, self.path, b"".join(self._waiting), abandon_on_cancel=True)
        except OSError as exc:
            del self._waiting[:-_KEPT]
            if not self._refused:
                log.warning("metrics.write_failed", path=str(self.path), error=str(exc))
            self._refused = True
        else:
            self._waiting.clear()
            self._refused = False


def _append(path: Path, data: bytes) -> None:
    with path.open("ab", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        if file.write(data) != len(data):
            file.truncate(end)  # or the next try would leave half a line and then repeat it
            raise OSError(errno.ENOSPC, "the disk took only a part of it")


def _cut_behind(path: Path, step: int) -> int:
    """Keep the lines up to the first one that is torn or of a step after ``step``; return the last step kept."""
    if not path.exists():
        return 0
    kept, last = 0, 0
    with path.open("rb+") as file:
        for line in file:
            found = _step_of(line)
            if found is None or found > step:
                break
            kept, last = kept + len(line), found
        file.truncate(kept)
    return last


def _step_of(line: bytes) -> int | None:
    try:
        return msgspec.json.decode(line, type=_Line).step if line.endswith(b"\n") else None
    except msgspec.MsgspecError:
        return None


class _Line(msgspec.Struct):
    step: int


def check(cfg: Config, site: Site) -> Sequence[Problem]:
    """Return nothing: a disk that refuses does not stop a run."""
    del cfg, site
    return ()


@asynccontextmanager
async def open(cfg: Config, host: Host) -> AsyncGenerator[JsonlTracker]:  # noqa: A001 - the adapters' common name
    """Open the tracker; what it took is on the disk when the block ends, or reported as refused."""
    del cfg
    if host.site.run_dir is None:
        await checkpoint()
        yield JsonlTracker(None)
        return
    writer = Writer(Path(host.site.run_dir) / FILE)
    sender, receiver = anyio.create_memory_object_stream[bytes](_KEPT)
    async with open_tasks() as tasks:
        tasks.start_soon(owned, "tracker jsonl", partial(writer.run, receiver), name="tracker jsonl")
        try:
            yield JsonlTracker(sender, writer.path)
        finally:
            sender.close()
            with anyio.move_on_after(_FLUSH_DEADLINE_S, shield=True):
                await writer.ended.wait()
            writer.give_up()


_: type[TrackerPort] = JsonlTracker
