"""A plain OpenAI client gets answers."""

from typing import Any

import anyio.to_thread
import pytest

from tests.support.http_engines import new_plain_client, open_test_server

pytestmark = pytest.mark.real_time

COMPLETION = {"model": "policy", "prompt": "12+3", "max_tokens": 6, "seed": 3, "logprobs": 1}


async def test_a_completion_has_the_fields_of_the_published_schema() -> None:
    """The required fields of ``CompletionResponse`` in OpenAI's and vLLM 0.32's ``openapi.json``."""
    async with open_test_server("vllm") as url, new_plain_client(url) as client:
        answer = (await client.post("/v1/completions", json={**COMPLETION, "n": 2})).json()
        assert answer["object"] == "text_completion"
        assert {"id", "created", "model", "choices", "usage"} <= answer.keys()
        assert [choice["index"] for choice in answer["choices"]] == [0, 1]
        made = 0
        for choice in answer["choices"]:
            told = choice["logprobs"]
            assert choice["finish_reason"] in {"stop", "length"}
            assert len(told["tokens"]) == len(told["token_logprobs"]) == len(told["text_offset"])
            assert "".join(told["tokens"]) == choice["text"]
            made += len(told["tokens"])
        usage = {"prompt_tokens": 4, "completion_tokens": made, "total_tokens": 4 + made}
        assert answer["usage"] == usage


async def test_a_stop_that_is_no_token_is_refused() -> None:
    async with open_test_server("sglang") as url, new_plain_client(url) as client:
        answer = await client.post("/v1/completions", json={**COMPLETION, "stop": "12"})
        assert answer.status_code == 400
        assert "not a single token" in answer.json()["error"]["message"]
        stopped = (await client.post("/v1/completions", json={**COMPLETION, "stop": list("0123456789")})).json()
        assert stopped["usage"]["completion_tokens"] <= 6


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
async def test_the_openai_client_is_answered(kind: str) -> None:
    openai = pytest.importorskip("openai")

    def ask(url: str) -> Any:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            return ask_with(client)

    def ask_with(client: Any) -> Any:
        told = {name: value for name, value in COMPLETION.items() if name != "logprobs"}
        chat = {"model": "policy", "messages": [{"role": "user", "content": "1+2"}], "max_tokens": 5, "seed": 1}
        whole = client.completions.create(**told).choices[0].text
        pieces = [piece.choices[0].text for piece in client.completions.create(**told, stream=True)]
        answer = client.chat.completions.create(**chat, logprobs=True).choices[0]
        deltas = [piece.choices[0].delta.content for piece in client.chat.completions.create(**chat, stream=True)]
        with pytest.raises(openai.BadRequestError):
            client.completions.create(**{**told, "prompt": "no token for this"})
        return client.models.list().data[0].id, whole, pieces, answer, deltas

    async with open_test_server(kind) as url:
        model, whole, pieces, answer, deltas = await anyio.to_thread.run_sync(ask, url)
    assert model == "policy"
    assert whole == "".join(pieces)
    assert answer.message.content == "".join(deltas)
    assert all(token.logprob <= 0 for token in answer.logprobs.content)
