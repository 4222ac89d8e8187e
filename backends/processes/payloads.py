"""The payload store of processes on one machine: a file each, in a folder that all of them know.

Whoever puts or gets does so himself; the controller sees references only. A file's name says whose it is, so nobody
keeps a list. It appears whole or not at all; what a reader has mapped stays when the file is removed.
"""

import errno
import os
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple, TypeVar, TypeVarTuple
from urllib.parse import quote, unquote

import anyio.to_thread

from backends.processes import bulk
from protocols.backend import Bulk, PayloadPort
from protocols.errors import InvariantError, Transient, WorkerLost
from protocols.messages import PayloadRef

T = TypeVar("T")
Args = TypeVarTuple("Args")

_BETWEEN = "@"  # owner and key; neither has it once it is quoted
_ASIDE = "."  # before the name of what is not whole yet
_LONGEST = 255


class _File(NamedTuple):
    path: str
    owner: str
    size: int


class SharedPayloads:
    """Puts, gets and releases files. Any number of processes at a time.

    Args:
        folder: It exists.
        limit_bytes: The most that all of them may hold. Two puts at one moment may both take the last of it.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._numbers = count()

    async def put(self, ref: PayloadRef, value: Bulk) -> None:
        """Store ``value``; see ``PayloadPort.put``. It is copied into the file, once.

        Raises:
            Transient: No room now.
            InvariantError: ``value`` cannot be stored, or its name is too long.
        """
        await self._in_thread(self._put, ref, value)

    async def get(self, ref: PayloadRef) -> Bulk:
        """Return what was put; see ``PayloadPort.get``. Arrays are mapped, and may be written to without effect."""
        return await self._in_thread(self._get, ref)

    async def release(self, owner: str) -> None:
        """Remove the files of every owner that starts with ``owner``; see ``PayloadPort.release``."""
        await self._in_thread(self._release, owner)

    async def owners(self) -> frozenset[str]:
        """Return the owners that hold something."""
        return await self._in_thread(lambda: frozenset(file.owner for file in self._files()))

    async def _in_thread(self, job: Callable[[*Args], T], *args: *Args) -> T:
        try:
            return await anyio.to_thread.run_sync(job, *args)
        except OSError as exc:
            if exc.errno in {errno.ENOSPC, errno.EDQUOT}:
                raise Transient(f"no room in {self._folder}: {exc.strerror}") from exc
            raise WorkerLost(worker="payload store", cause=str(exc)) from exc

    def _put(self, ref: PayloadRef, value: Bulk) -> None:
        path = self._path(ref)
        try:
            parts = bulk.encode(value)
        except TypeError as exc:
            raise InvariantError(f"{ref} cannot be stored: {exc}") from exc
        size, held = sum(len(part) for part in parts), sum(file.size for file in self._files())
        if held + size > self._limit_bytes:
            raise Transient(f"no room for {ref}: {size} bytes beside {held} of at most {self._limit_bytes}")
        aside = self._folder / f"{_ASIDE}{os.getpid()}-{next(self._numbers)}"
        try:
            with aside.open("wb") as file:
                for part in parts:
                    file.write(part)
            aside.replace(path)
        except OSError:
            aside.unlink(missing_ok=True)
            raise

    def _get(self, ref: PayloadRef) -> Bulk:
        try:
            return bulk.read(self._path(ref))
        except FileNotFoundError as exc:
            raise WorkerLost(worker="payload store", cause=f"it holds no {ref.key!r} of {ref.owner!r}") from exc
        except bulk.Unreadable as exc:
            raise WorkerLost(worker="payload store", cause=f"{ref.key!r} of {ref.owner!r}: {exc}") from exc

    def _release(self, owner: str) -> None:
        for file in self._files():
            if file.owner.startswith(owner):
                Path(file.path).unlink(missing_ok=True)

    def _files(self) -> Iterator[_File]:
        with os.scandir(self._folder) as entries:
            for entry in entries:
                owner, between, _ = entry.name.partition(_BETWEEN)
                if not between:
                    continue
                try:
                    size = entry.stat().st_size
                except FileNotFoundError:  # released meanwhile
                    continue
                yield _File(entry.path, unquote(owner), size)

    def _path(self, ref: PayloadRef) -> Path:
        name = f"{quote(ref.owner, safe='')}{_BETWEEN}{quote(ref.key, safe='')}"
        if len(name) > _LONGEST:
            raise InvariantError(f"{ref} is longer than the {_LONGEST} characters of a file's name")
        return self._folder / name


_: type[PayloadPort] = SharedPayloads
