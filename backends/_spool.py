"""A group's payload in a file: the CRC-32 of its bytes, then the bytes, in MessagePack.

Nothing waits for the disk: what a power failure takes is found by the sum, and generated anew.
"""

import zlib
from functools import partial
from pathlib import Path

import anyio.to_thread
import msgspec

from protocols.backend import Bulk
from protocols.errors import InvariantError, PortFailed, WorkerLost
from protocols.rollouts import GroupPayload

_SUM = 4  # bytes


async def spool(payload: Bulk, path: str) -> None:
    """Write a payload in a thread; see ``PayloadPort.spool``."""
    if not isinstance(payload, GroupPayload):
        raise InvariantError(f"{path}: {type(payload).__name__} is no payload of a group")
    try:
        await anyio.to_thread.run_sync(write, Path(path), payload)
    except OSError as exc:
        raise PortFailed(f"a payload could not be kept: {exc}") from exc


async def unspool(path: str) -> GroupPayload:
    """Read a payload in a thread; see ``PayloadPort.unspool``."""
    return await anyio.to_thread.run_sync(partial(read, Path(path)))


def write(path: Path, payload: GroupPayload) -> None:
    """Write a payload aside, and rename it when it is whole.

    Raises:
        OSError: The disk refuses.
    """
    body = msgspec.msgpack.encode(payload)
    aside = path.with_name(f".{path.name}")
    aside.write_bytes(zlib.crc32(body).to_bytes(_SUM) + body)
    aside.replace(path)


def read(path: Path) -> GroupPayload:
    """Return what was written.

    Raises:
        WorkerLost: It is not there, or something else is.
    """
    try:
        data = path.read_bytes()
    except OSError as exc:
        raise _lost(f"{path} cannot be read: {exc.strerror}") from exc
    body = data[_SUM:]
    if data[:_SUM] != zlib.crc32(body).to_bytes(_SUM):
        raise _lost(f"{path} is damaged")
    try:
        return msgspec.msgpack.decode(body, type=GroupPayload)
    except msgspec.MsgspecError as exc:
        raise _lost(f"{path} is not of this version: {exc}") from exc


def _lost(cause: str) -> WorkerLost:
    return WorkerLost(worker="payload store", cause=cause)
