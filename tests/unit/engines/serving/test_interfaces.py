"""``conductor engine``: what its interfaces answer, beside what the servers that they are taken from answer."""

import json
from typing import Any

import anyio
import httpx2
import pytest

from tests.support.http_engines import KINDS, Published, new_plain_client, open_test_server

pytestmark = pytest.mark.real_time

each_kind = pytest.mark.parametrize("kind", KINDS)


def body(kind: str, name: str, *, tokens: int = 40, **more: Any) -> tuple[str, dict[str, Any]]:
    """Return path and body of a request for tokens, in the words of an interface."""
    if kind == "vllm":
        drawn = {"max_tokens": tokens, "seed": 1, "logprobs": 0, "ignore_eos": True, "detokenize": False}
        return "/inference/v1/generate", {"request_id": name, "token_ids": [1, 2, 3], "sampling_params": drawn, **more}
    drawn = {"max_new_tokens": tokens, "sampling_seed": 1, "ignore_eos": True}
    return "/generate", {"rid": name, "input_ids": [1, 2, 3], "sampling_params": drawn, "return_logprob": True, **more}


def ids_in(kind: str, answer: Any) -> list[int]:
    return answer["choices"][0]["token_ids"] if kind == "vllm" else answer["output_ids"]


def finish_in(kind: str, answer: Any) -> str:
    return answer["choices"][0]["finish_reason"] if kind == "vllm" else answer["meta_info"]["finish_reason"]["type"]


def spans_in(kind: str, answer: Any) -> list[dict[str, Any]]:
    return answer["choices"][0]["weight_versions"] if kind == "vllm" else answer["meta_info"]["weight_versions"]


async def pause(client: httpx2.AsyncClient, kind: str) -> None:
    path, told = ("/pause?mode=keep", {}) if kind == "vllm" else ("/pause_generation", {"mode": "in_place"})
    (await client.post(path, json=told)).raise_for_status()


async def resume(client: httpx2.AsyncClient, kind: str) -> None:
    (await client.post("/resume" if kind == "vllm" else "/continue_generation", json={})).raise_for_status()


async def update(client: httpx2.AsyncClient, kind: str, folder: str, label: str) -> httpx2.Response:
    if kind == "sglang":
        return await client.post("/update_weights_from_disk", json={"model_path": folder, "weight_version": label})
    reload = {"method": "reload_weights", "kwargs": {"weights_path": folder}}
    answer = await client.post("/collective_rpc", json=reload)
    if answer.is_success:
        await client.post("/update_weight_version", json={"new_version": label})
    return answer


async def saved(folder: Any, version: int) -> str:
    """Write the small model's weights of a version as a publish does."""
    from backends.engines._http.files import WeightFiles  # noqa: PLC0415 - torch is heavy

    published = Published()
    weights: Any = await published.payloads.get((await published.manifest(version)).payload)
    return str(WeightFiles(folder).write(f"v{version}", weights))


class Answers:
    """What requests that ran beside the test were answered."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client
        self.by_name: dict[str, Any] = {}

    async def ask(self, name: str, path: str, told: dict[str, Any]) -> None:
        self.by_name[name] = (await self._client.post(path, json=told)).json()


@each_kind
async def test_tokens_stream_and_are_those_of_the_whole(kind: str) -> None:
    async with open_test_server(kind) as url, new_plain_client(url) as client:
        path, told = body(kind, "a", tokens=6)
        whole = (await client.post(path, json=told)).json()
        events: list[Any] = []
        async with client.stream("POST", path, json={**told, "stream": True}) as answer:
            assert answer.headers["content-type"] == "text/event-stream"
            lines = [line.removeprefix("data: ") async for line in answer.aiter_lines() if line]
        assert lines.pop() == "[DONE]"
        events = [json.loads(line) for line in lines]
        assert len(events) == 7  # six tokens, and the end
        streamed = [token for event in events for token in ids_in(kind, event)] if kind == "vllm" else None
        assert (streamed or ids_in(kind, events[-1])) == ids_in(kind, whole)
        assert finish_in(kind, events[-1]) == finish_in(kind, whole) == "length"
        assert spans_in(kind, events[-1]) == [{"version": "default", "start": 0, "end": 6}]


@each_kind
async def test_an_abort_knows_whole_names_alone(kind: str) -> None:
    """A running vLLM 0.32 answers an abort by the bare id with ``aborted: 1``, and goes on; SGLang knows no prefix."""
    async with open_test_server(kind) as url, new_plain_client(url) as client:
        await pause(client, kind)
        answers = Answers(client)
        async with anyio.create_task_group() as tasks:
            for name in ("a/1", "a/12"):
                tasks.start_soon(answers.ask, name, *body(kind, name))
            await _until_running(client, kind, 2)
            wrong, right = ("a/1", "generate-tokens-a/1") if kind == "vllm" else ("a", "a/1")
            assert (await _abort(client, kind, wrong)).status_code == 200
            assert await _running(client, kind) == 2
            assert (await _abort(client, kind, right)).status_code == 200
            assert await _running(client, kind) == 1
            await resume(client, kind)
        assert finish_in(kind, answers.by_name["a/1"]) == "abort"
        assert finish_in(kind, answers.by_name["a/12"]) == "length"


@each_kind
async def test_spans_follow_the_weights_that_made_them(kind: str, tmp_path: Any) -> None:
    async with open_test_server(kind) as url, new_plain_client(url) as client:
        answers = Answers(client)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answers.ask, "a", *body(kind, "a", tokens=60))
            await _until_running(client, kind, 1)
            await pause(client, kind)
            (await update(client, kind, await saved(tmp_path / "w", 1), "one")).raise_for_status()
            await resume(client, kind)
        spans = spans_in(kind, answers.by_name["a"])
        assert [span["version"] for span in spans] in (["default", "one"], ["one"])
        assert [span["start"] for span in spans] == [0, *(span["end"] for span in spans[:-1])]
        assert spans[-1]["end"] == 60
        path, told = body(kind, "b", tokens=3)
        assert spans_in(kind, (await client.post(path, json=told)).json())[0]["version"] == "one"


@each_kind
async def test_a_damaged_file_of_weights_is_refused(kind: str, tmp_path: Any) -> None:
    async with open_test_server(kind) as url, new_plain_client(url) as client:
        folder = await saved(tmp_path / "w", 1)
        file = tmp_path / "w" / "v1" / "model.safetensors"
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
        answer = await update(client, kind, folder, "one")
        assert answer.status_code == 400
        assert "model.safetensors is damaged" in answer.text
        path, told = body(kind, "b", tokens=3)
        assert spans_in(kind, (await client.post(path, json=told)).json())[0]["version"] == "default"


@each_kind
async def test_a_client_that_leaves_ends_its_request(kind: str) -> None:
    """vllm#9428, vllm#10806: requests went on after their clients had left (I46)."""
    async with open_test_server(kind) as url, new_plain_client(url) as client:
        await pause(client, kind)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(Answers(client).ask, "a", *body(kind, "a"))
            await _until_running(client, kind, 1)
            tasks.cancel_scope.cancel()
        await _until_running(client, kind, 0)


@pytest.mark.parametrize("mode", ["keep", "wait", "abort"])
async def test_vllm_pauses_in_three_ways(mode: str) -> None:
    async with open_test_server("vllm") as url, new_plain_client(url) as client:
        answers = Answers(client)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answers.ask, "a", *body("vllm", "a", tokens=60))
            await _until_running(client, "vllm", 1)
            (await client.post(f"/pause?mode={mode}")).raise_for_status()
            assert (await client.get("/is_paused")).json() == {"is_paused": True}
            assert await _running(client, "vllm") == (1 if mode == "keep" else 0)
            await resume(client, "vllm")
        assert finish_in("vllm", answers.by_name["a"]) == ("abort" if mode == "abort" else "length")


@each_kind
async def test_what_cannot_be_done_is_refused(kind: str) -> None:
    async with open_test_server(kind) as url, new_plain_client(url) as client:
        path, told = body(kind, "a")
        prompt = "token_ids" if kind == "vllm" else "input_ids"
        for wrong in ({prompt: [1, 4711]}, {prompt: []}, {prompt: [1] * 64}, {prompt: "text"}):
            answer = await client.post(path, json={**told, **wrong})
            assert answer.status_code == 400, wrong
            assert answer.json()["error"]["message"]
        assert (await client.get("/nothing")).status_code == 404
        assert (await client.post(path, json=told)).status_code == 200


@each_kind
async def test_a_fault_hits_the_call_that_the_plan_names(kind: str) -> None:
    faults = "lost_request@Engine.generate#1;lost_reply@Engine.generate#2"
    async with open_test_server(kind, faults=faults) as url, new_plain_client(url) as client:
        path, told = body(kind, "a", tokens=3)
        for _ in range(2):
            with pytest.raises(httpx2.NetworkError):
                await client.post(path, json=told)
        assert (await client.post(path, json=told)).status_code == 200


@each_kind
async def test_a_hanging_call_hangs_alone_and_a_slow_one_comes(kind: str) -> None:
    async with (
        open_test_server(kind, faults="hang@Engine.generate#1;slow@Engine.generate#2+0.2") as url,
        new_plain_client(url) as client,
    ):
        path, told = body(kind, "a", tokens=3)
        with anyio.move_on_after(0.3) as waited:
            await client.post(path, json=told)
        assert waited.cancelled_caught
        began = anyio.current_time()
        assert (await client.post(path, json=told)).status_code == 200
        assert anyio.current_time() - began >= 0.2


async def _abort(client: httpx2.AsyncClient, kind: str, name: str) -> httpx2.Response:
    if kind == "vllm":
        return await client.post("/abort_requests", json={"request_ids": [name]})
    return await client.post("/abort_request", json={"rid": name})


async def _running(client: httpx2.AsyncClient, kind: str) -> int:
    if kind == "sglang":
        return (await client.get("/v1/loads")).json()["loads"][0]["num_running_reqs"]
    lines = (await client.get("/metrics")).text.splitlines()
    return int(float(next(line for line in lines if line.startswith("vllm:num_requests_running")).split()[-1]))


async def _until_running(client: httpx2.AsyncClient, kind: str, count: int) -> None:
    while await _running(client, kind) != count:
        pass  # each question is a round trip


async def test_sglang_takes_tensors_in_a_session_and_a_group_alone() -> None:
    """SGLang 0.5.23 answers 400 to an update outside of a session, and to a second session."""
    async with open_test_server("sglang") as url, new_plain_client(url) as client:

        async def refused(path: str, **told: Any) -> str:
            answer = await client.post(path, json=told)
            assert answer.status_code == 400
            assert answer.json()["success"] is False
            return answer.json()["message"]

        tensors: dict[str, Any] = {"names": [], "dtypes": [], "shapes": [], "group_name": "g"}
        assert "session" in await refused("/update_weights_from_distributed", **tensors)
        assert "session" in await refused("/end_weight_update")
        (await client.post("/begin_weight_update", json={})).raise_for_status()
        assert "session" in await refused("/begin_weight_update")
        assert "group" in await refused("/update_weights_from_distributed", **tensors)
        assert "group" in await refused("/destroy_weights_update_group", group_name="g")
        meeting = {"master_address": "127.0.0.1", "master_port": 1, "rank_offset": 1, "world_size": 2}
        assert "gloo" in await refused("/init_weights_update_group", **meeting, group_name="g", backend="nccl")
        (await client.post("/end_weight_update", json={})).raise_for_status()
