"""The payload store of processes on one machine: a file each, in a folder that all of them know.

Whoever puts or gets does so himself; the controller sees references only. A file's name says whose it is, so nobody
keeps a list. It appears whole or not at all; what a reader has mapped stays when the file is removed.
"""

import errno
import os
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import TypeVar, TypeVarTuple
from urllib.parse import quote, unquote

import anyio.to_thread

from backends._spool import spool, unspool
from backends.processes import bulk
from protocols.backend import Bulk, PayloadPort
from protocols.errors import InvariantError, Transient, WorkerLost
from protocols.messages import PayloadRef

T = TypeVar("T")
Args = TypeVarTuple("Args")

_BETWEEN = "@"  # owner and key; neither has it once it is quoted
_ASIDE = "#"  # before the name of what is not whole yet; in no other name once it is quoted
_LONGEST = 255


class SharedPayloads:
    """Puts, gets and releases files. Any number of processes at a time.

    Args:
        folder: It exists.
        reserve_bytes: What must stay free where it lies. Two puts at one moment may both take the last of the rest.
    """

    def __init__(self, folder: Path, reserve_bytes: int) -> None:
        self._folder = folder
        self._reserve_bytes = reserve_bytes
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
        return await self._in_thread(self._owners)

    async def spool(self, ref: PayloadRef, path: str) -> None:
        """Write a group's payload to a file that outlives the run; see ``PayloadPort.spool``."""
        await spool(await self.get(ref), path)

    async def unspool(self, ref: PayloadRef, path: str) -> None:
        """Store what such a file holds; see ``PayloadPort.unspool``."""
        await self.put(ref, await unspool(path))

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
        size, free = sum(len(part) for part in parts), shutil.disk_usage(self._folder).free
        if free - size < self._reserve_bytes:
            raise Transient(f"no room for {ref}: {size} bytes, {free} are free and {self._reserve_bytes} must stay so")
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
        start = quote(owner, safe="")  # byte by byte, so that the start of a name is the name of its start
        for name in self._names():
            if name.startswith(start):
                (self._folder / name).unlink(missing_ok=True)

    def _owners(self) -> frozenset[str]:
        return frozenset(unquote(name.partition(_BETWEEN)[0]) for name in self._names())

    def _names(self) -> list[str]:
        return [name for name in os.listdir(self._folder) if _BETWEEN in name]  # noqa: PTH208 - a fifth of the time

    def _path(self, ref: PayloadRef) -> Path:
        name = f"{quote(ref.owner, safe='')}{_BETWEEN}{quote(ref.key, safe='')}"
        if len(name) > _LONGEST:
            raise InvariantError(f"{ref} is longer than the {_LONGEST} characters of a file's name")
        return self._folder / name


_: type[PayloadPort] = SharedPayloads
