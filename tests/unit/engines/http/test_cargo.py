"""Weights that are sent to a server which does not take them."""

from collections.abc import Sequence

import anyio
import pytest
import torch
from anyio.lowlevel import checkpoint

from backends.engines._broadcast import BroadcastFailed
from backends.engines._http import cargo, update_group
from backends.engines._serve.sglang import Sglang
from backends.engines._serve.vllm import Vllm
from backends.engines._serve.web import Answer, ConnectionReset, Request, as_json
from backends.engines._update_group import UpdateGroup
from protocols.errors import DeadlineExceeded, Transient, UserError
from tests.support.http_engines import KINDS, Published, new_plain_client, open_attached, open_test_server

pytestmark = pytest.mark.real_time

each_kind = pytest.mark.parametrize("kind", KINDS)


@each_kind
async def test_a_server_that_never_comes_to_the_broadcast_costs_a_load(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hangs, and answers nothing: neither the meeting nor the answer is waited for without end."""
    monkeypatch.setattr(cargo, "MEET_S", 0.5)
    monkeypatch.setattr(cargo, "ANSWER_S", 0.1)
    published = Published()
    async with (
        open_test_server(kind, faults="hang@Engine.load_weights#1") as url,
        open_attached(kind, url, published, weights="gloo") as engine,
    ):
        with anyio.fail_after(20), pytest.raises(DeadlineExceeded, match="the meeting with http"):
            await engine.load_weights(await published.manifest(0))
        assert (await engine.status()).version is None
        monkeypatch.undo()
        assert await engine.load_weights(await published.manifest(0)) == 0


@each_kind
async def test_a_load_that_is_cancelled_leaves_a_server_that_takes_the_next(kind: str) -> None:
    """A publish has no more time, or newer weights are wanted."""
    published = Published()
    async with (
        open_test_server(kind, faults="hang@Engine.load_weights#1") as url,
        open_attached(kind, url, published, weights="gloo") as engine,
    ):
        with anyio.move_on_after(0.5) as cut:
            await engine.load_weights(await published.manifest(0))
        assert cut.cancelled_caught
        assert await engine.load_weights(await published.manifest(1)) == 1
        assert (await engine.status()).version == 1


@each_kind
async def test_a_server_that_hangs_does_not_keep_another_from_its_weights(kind: str) -> None:
    published = Published()
    async with (
        open_test_server(kind, faults="hang@Engine.load_weights#1") as url,
        open_test_server(kind) as other_url,
        open_attached(kind, url, published, weights="gloo") as engine,
        open_attached(kind, other_url, published, weights="gloo") as other,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(engine.load_weights, await published.manifest(0))
        assert await other.load_weights(await published.manifest(0)) == 0
        assert await other.load_weights(await published.manifest(1)) == 1
        tasks.cancel_scope.cancel()


@each_kind
async def test_a_lost_answer_costs_a_load_at_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked again, a server would wait for tensors that nobody sends any more."""
    served, name = (Vllm, "_remote") if kind == "vllm" else (Sglang, "_receive")
    whole, asked = getattr(served, name), list[Request]()

    async def lost(interface: object, request: Request) -> Answer:
        asked.append(request)
        answer = await whole(interface, request)
        if len(asked) == 1:
            raise ConnectionReset
        return answer

    monkeypatch.setattr(served, name, lost)
    published = Published()
    async with (
        open_test_server(kind) as url,
        open_attached(kind, url, published, weights="gloo") as engine,
    ):
        with anyio.fail_after(20), pytest.raises(Transient):
            await engine.load_weights(await published.manifest(0))
        assert (await engine.status()).version is None
        assert await engine.load_weights(await published.manifest(0)) == 0


async def test_an_update_that_breaks_half_way_is_vouched_for_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang loads tensors as they come: some are of the new weights, the others of the old."""
    published = Published()
    monkeypatch.setattr(update_group, "BUCKET_BYTES", 4096)
    whole, sent = UpdateGroup.send, list[int]()

    def breaks(group: UpdateGroup, tensors: Sequence[torch.Tensor], device: torch.device) -> None:
        sent.append(len(tensors))
        if len(sent) == 3:
            group.leave()
            raise BroadcastFailed("it broke")
        whole(group, tensors, device)

    async with (
        open_test_server("sglang") as url,
        open_attached("sglang", url, published, weights="gloo") as engine,
        new_plain_client(url) as client,
    ):
        await engine.load_weights(await published.manifest(0))
        with monkeypatch.context() as broken:
            broken.setattr(UpdateGroup, "send", breaks)
            with anyio.fail_after(20), pytest.raises(Transient, match="Failed to receive weights"):
                await engine.load_weights(await published.manifest(1))
        assert (await engine.status()).version is None
        assert (await client.post("/end_weight_update", json={})).status_code == 400  # no session is left open
        assert await engine.load_weights(await published.manifest(1)) == 1


async def test_no_error_of_torch_crosses_the_port() -> None:
    """A device without room for a bucket, a machine without a free port: the load is tried again."""

    def send() -> None:
        raise torch.OutOfMemoryError("32 MiB")

    with pytest.raises(Transient, match="the broadcast to http://there broke: 32 MiB"):
        await cargo.in_thread("http://there", send)


async def test_a_session_that_its_sender_left_open_stops_no_update() -> None:
    """A sender that is killed closes nothing, and a server has one session."""
    published = Published()
    async with (
        open_test_server("sglang") as url,
        open_attached("sglang", url, published, weights="gloo") as engine,
        new_plain_client(url) as client,
    ):
        (await client.post("/begin_weight_update", json={})).raise_for_status()
        assert await engine.load_weights(await published.manifest(0)) == 0


async def test_a_server_whose_workers_have_no_numbers_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang numbers the workers of a group by their tensor rank alone: two would come as one."""

    async def info(*_: object) -> Answer:
        await checkpoint()
        return as_json({"context_length": 64, "tp_size": 1, "pp_size": 2})

    monkeypatch.setattr(Sglang, "_server_info", info)
    published = Published()
    async with (
        open_test_server("sglang") as url,
        open_attached("sglang", url, published, weights="gloo") as engine,
    ):
        with pytest.raises(UserError, match=r"set engine\.weights = 'file', or start it with tensor parallelism alone"):
            await engine.load_weights(await published.manifest(0))
