"""Weights into an SGLang server by broadcast, in a group that is made for them and destroyed after them."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import structlog
from anyio.lowlevel import checkpoint
from msgspec import Struct

from backends.engines._broadcast import BUCKET_BYTES, Terms, buckets_of, pieces_of
from backends.engines._http.cargo import (
    ANSWER_S,
    MEET_S,
    Broadcast,
    address_before,
    beside,
    broadcasting_to,
    in_thread,
    until_met,
)
from backends.engines._http.connection import Connection, ServerRefused
from backends.engines._update_group import UpdateGroup
from protocols.aio import bounded_shield
from protocols.errors import ConductorError, Transient, UserError

log = structlog.get_logger(__name__)

_FIRST_RECEIVER = 1
"""The rank of the server's first worker: the sender is rank 0."""


class _ServerInfo(Struct):
    tp_size: int = 1
    pp_size: int = 1
    dp_size: int = 1


async def update_by_broadcast(connection: Connection, cargo: Broadcast, name: str) -> None:
    """Let a paused server receive weights in place; one that fails half-way leaves some of each.

    Args:
        connection: To the server.
        cargo: What is sent.
        name: Of the group, which the server has never had.

    Raises:
        Transient: Its workers did not come, or left, or are too slow.
        UserError: It is started so that it takes none.
        ServerRefused, WorkerLost: As ``Connection``.
    """
    url = connection.name
    info = await connection.get("/server_info", _ServerInfo)
    if info.pp_size > 1 or info.dp_size > 1:  # SGLang numbers the workers of a group by their tensor rank alone
        why = f"{url} runs pipeline or data parallel, and takes no weights by broadcast"
        raise UserError(f"{why}; set engine.weights = 'file', or start it with tensor parallelism alone")
    terms = Terms(world=_FIRST_RECEIVER + info.tp_size, transport=cargo.transport, timeout_s=MEET_S)
    host = await address_before(url)
    with broadcasting_to(url):
        group = UpdateGroup(host, name, terms)
    async with _updating(connection, group):
        await _meet(connection, group)
        for bucket in buckets_of(pieces_of(cargo.tensors), BUCKET_BYTES):
            told = {
                "names": [piece.name for piece in bucket],
                "dtypes": [piece.kind for piece in bucket],
                "shapes": [piece.shape for piece in bucket],
                "group_name": name,
                "flush_cache": False,  # as with files
            }
            tensors = [cargo.tensors[piece.name] for piece in bucket]
            await beside(
                url,
                lambda tensors=tensors: in_thread(url, group.send, tensors, cargo.device),
                lambda told=told: _ask_once(connection, "/update_weights_from_distributed", told),
            )


async def _meet(connection: Connection, group: UpdateGroup) -> None:
    url = connection.name

    async def come() -> None:
        await until_met(url, lambda: group.awaited)
        await in_thread(url, group.meet)

    told = {
        "master_address": group.host,
        "master_port": group.port,
        "rank_offset": _FIRST_RECEIVER,
        "world_size": group.terms["world"],
        "group_name": group.name,
        "backend": group.terms["transport"],
    }
    await beside(url, come, lambda: _ask_once(connection, "/init_weights_update_group", told))


async def _ask_once(connection: Connection, path: str, told: object) -> None:
    async def never_again() -> None:
        await checkpoint()
        raise Transient(f"{connection.name} broke the connection in the middle of a broadcast")

    await connection.post(path, told, before_again=never_again)  # asked twice, it would wait for what nobody sends


@asynccontextmanager
async def _updating(connection: Connection, group: UpdateGroup) -> AsyncGenerator[None]:
    """Open the server's session, outside of which it takes no tensors; close it and the group however that ends."""
    try:
        await connection.post("/begin_weight_update", {})
    except ServerRefused:  # one is open: its sender was cut off before it could close it
        await connection.post("/end_weight_update", {})
        await connection.post("/begin_weight_update", {})
    try:
        yield
    except BaseException:
        group.leave()
        with bounded_shield(ANSWER_S):
            await _give_up(connection, group.name)  # noqa: ASYNC102 - the shield has a deadline
        raise
    await connection.post("/end_weight_update", {})
    group.leave()
    await connection.post("/destroy_weights_update_group", {"group_name": group.name})


async def _give_up(connection: Connection, name: str) -> None:
    for path, told in (("/destroy_weights_update_group", {"group_name": name}), ("/end_weight_update", {})):
        try:
            await connection.post(path, told)
        except (ServerRefused, ConductorError) as exc:
            log.info("engine.update_not_closed", engine=connection.name, path=path, why=str(exc))
