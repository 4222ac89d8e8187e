"""vLLM's interface for reinforcement learning: tokens in and out, pause, abort, weights.

Paths, names and forms are those of a vLLM server 0.32 with ``VLLM_SERVER_DEV_MODE=1`` and ``--enable-scale-out``.
Log-probabilities are at the request's temperature; a vLLM server does that with ``--logprobs-mode processed_logprobs``.

Source: vLLM 0.32, ``entrypoints/rl/online/api_router.py``, ``entrypoints/scale_out/token_in_token_out``,
``entrypoints/serve/dev``; answers of a running server.
"""

import itertools
import time
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Literal

import msgspec
from msgspec import Struct

from backends.engines._broadcast import Invitation
from backends.engines._serve.openai import OpenAI
from backends.engines._serve.routes import Route, Routes, Tokens, drawn_by, failed
from backends.engines._serve.served import Made, ServedEngine
from backends.engines._serve.streams import stream_tokens
from backends.engines._serve.web import Answer, Refused, Request, Send, as_json
from backends.engines.torch.engine import OnToken

VERSION = "0.32.0"
NAMED = "generate-tokens-"
"""A request goes by this and what its client called it; an abort by the bare name is answered and does nothing."""


class _Sampling(Struct, kw_only=True):
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    n: int = 1
    seed: int | None = None
    stop_token_ids: Tokens = []
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None


class _Asked(Struct, kw_only=True):
    token_ids: Tokens
    sampling_params: _Sampling
    request_id: str = ""
    stream: bool = False


class _Abort(Struct):
    request_ids: list[str] = []


class _Label(Struct):
    new_version: str


class _Remote(Struct):
    method: str
    kwargs: dict[str, Any] = {}


class _Folder(Struct):
    weights_path: str


class _Adapter(Struct):
    lora_name: str
    lora_path: str


class Vllm:
    """Answers vLLM's paths with an engine."""

    def __init__(self, served: ServedEngine) -> None:
        self._served = served
        self._numbers = itertools.count()

    def routes(self) -> Routes:
        """Return the paths, OpenAI's among them."""
        return {
            **OpenAI(self._served).routes(),
            ("GET", "/health"): Route(self._health, "status"),
            ("GET", "/version"): Route(self._version),
            ("GET", "/metrics"): Route(self._metrics, "live_requests"),
            ("GET", "/weight_info"): Route(self._weight_info, "status"),
            ("GET", "/is_paused"): Route(self._is_paused, "status"),
            ("POST", "/inference/v1/generate"): Route(self._generate, "generate"),
            ("POST", "/abort_requests"): Route(self._abort, "abort"),
            ("POST", "/pause"): Route(self._pause, "pause"),
            ("POST", "/resume"): Route(self._resume, "resume"),
            ("GET", "/get_world_size"): Route(self._world),
            ("POST", "/collective_rpc"): Route(self._remote, "load_weights"),
            ("POST", "/v1/load_lora_adapter"): Route(self._load_adapter, "load_weights"),
            ("POST", "/update_weight_version"): Route(self._relabel),
            ("POST", "/reset_prefix_cache"): Route(self._reset_cache),
        }

    async def _health(self, _: Request) -> Answer:
        await self._served.engine.status()
        return Answer()

    async def _version(self, _: Request) -> Answer:
        return as_json({"version": VERSION})

    async def _metrics(self, _: Request) -> Answer:
        running, waiting = await self._served.busy()
        labels = f'{{engine="0",model_name="{self._served.model}"}}'
        lines = [
            f"vllm:num_requests_running{labels} {running}.0",
            f"vllm:num_requests_waiting{labels} {waiting}.0",
        ]
        return Answer(kind="text/plain; version=0.0.4; charset=utf-8", body="\n".join([*lines, ""]).encode())

    async def _weight_info(self, _: Request) -> Answer:
        return as_json({"weight_version": self._served.label})

    async def _is_paused(self, _: Request) -> Answer:
        return as_json({"is_paused": self._served.paused})

    async def _abort(self, request: Request) -> Answer:
        names = request.read(_Abort).request_ids
        await self._served.abort(names or None)
        return as_json({"status": "aborted", "aborted": len(names)})

    async def _pause(self, request: Request) -> Answer:
        modes: dict[str, Literal["keep", "wait", "abort"]] = {"keep": "keep", "wait": "wait", "abort": "abort"}
        mode = modes.get(request.query.get("mode", "abort"))
        if mode is None:
            raise Refused(HTTPStatus.BAD_REQUEST, "mode is keep, wait or abort")
        await self._served.pause(mode)
        return as_json({"status": "paused"})

    async def _resume(self, _: Request) -> Answer:
        await self._served.resume()
        return as_json({"status": "resumed"})

    async def _world(self, _: Request) -> Answer:
        return as_json({"world_size": 1})

    async def _remote(self, request: Request) -> Answer:
        asked = request.read(_Remote)
        try:
            match asked.method:
                case "reload_weights":
                    await self._served.load(msgspec.convert(asked.kwargs, _Folder).weights_path)
                case "conductor_receive":
                    await self._served.receive(msgspec.convert(asked.kwargs, Invitation))
                case _:
                    raise Refused(HTTPStatus.BAD_REQUEST, "the methods are reload_weights and conductor_receive")
        except msgspec.ValidationError as exc:
            raise Refused(HTTPStatus.BAD_REQUEST, f"{asked.method}: {exc}") from exc
        return as_json({"results": [None]})

    async def _load_adapter(self, request: Request) -> Answer:
        asked = request.read(_Adapter)
        await self._served.load(asked.lora_path)
        return Answer(kind="text/plain", body=f"Success: LoRA adapter '{asked.lora_name}' added successfully.".encode())

    async def _relabel(self, request: Request) -> Answer:
        label = request.read(_Label).new_version
        await self._served.relabel(label)
        return as_json({"success": True, "new_version": label})

    async def _reset_cache(self, _: Request) -> Answer:
        return as_json({"success": not self._served.running})

    async def _generate(self, request: Request) -> Answer:
        asked = request.read(_Asked)
        drawn = asked.sampling_params
        prompt = asked.token_ids
        name = f"{NAMED}{asked.request_id or next(self._numbers)}"
        longest = drawn.max_tokens or self._served.context
        sampling = drawn_by(self._served, prompt, longest, drawn)
        stops = [*drawn.stop_token_ids, *(() if drawn.ignore_eos else self._served.tokenizer.stop_token_ids)]

        async def generate(on_token: OnToken | None = None) -> list[Made]:
            return await self._served.generate(
                name, prompt, sampling, stops=stops, seed=drawn.seed, count=drawn.n, on_token=on_token
            )

        if not asked.stream:
            scores = None if drawn.prompt_logprobs is None else await self._scores(prompt)
            return as_json(_whole(self._served, name, prompt, await generate(), told=drawn.logprobs, scores=scores))

        async def stream(send: Send) -> None:
            await stream_tokens(
                send,
                generate,
                each=lambda number, token, logprob: _piece(name, number, (token,), (logprob,)),
                last=lambda answers: [_piece(name, number, (), (), made) for number, made in enumerate(answers)],
                failed=lambda error: failed(error).body,
            )

        return Answer(stream=stream)

    async def _scores(self, prompt: Tokens) -> list[dict[str, Any] | None]:
        scores = await self._served.engine.score(prompt)
        told = zip(prompt[1:], scores, strict=True)
        return [None, *({str(token): {"logprob": score, "rank": None, "decoded_token": None}} for token, score in told)]


def _whole(
    served: ServedEngine,
    name: str,
    prompt: Tokens,
    answers: Sequence[Made],
    *,
    told: int | None,
    scores: list[dict[str, Any] | None] | None,
) -> dict[str, Any]:
    made = sum(len(answer.token_ids) for answer in answers)
    usage = {"prompt_tokens": len(prompt), "completion_tokens": made, "total_tokens": len(prompt) + made}
    return {
        "request_id": name,
        "model": served.model,
        "created": int(time.time()),
        "usage": usage,
        "prompt_logprobs": scores,
        "output_mode": "tokens",
        "choices": [
            _choice(number, answer.token_ids, answer.logprobs if told is not None else None, answer)
            for number, answer in enumerate(answers)
        ],
    }


def _piece(name: str, number: int, tokens: Sequence[int], logprobs: Sequence[float], made: Made | None = None) -> bytes:
    choice = _choice(number, tokens, logprobs, made)
    return msgspec.json.encode({"request_id": name, "output_mode": "tokens", "choices": [choice]})


def _choice(number: int, tokens: Sequence[int], logprobs: Sequence[float] | None, made: Made | None) -> dict[str, Any]:
    content = None
    if logprobs is not None:
        pairs = zip(tokens, logprobs, strict=True)
        content = {"content": [{"token_id": one, "logprob": value, "top_logprobs": []} for one, value in pairs]}
    return {
        "index": number,
        "finish_reason": None if made is None else made.finish,
        "stop_reason": None,
        "token_ids": list(tokens),
        "weight_versions": None if made is None else [span.as_dict() for span in made.spans],
        "logprobs": content,
    }
