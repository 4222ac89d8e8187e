"""SGLang's interface for reinforcement learning: tokens in and out, pause, abort, weights.

Log-probabilities are at the request's temperature, as SGLang's are unless ``SGLANG_RETURN_ORIGINAL_LOGPROB`` is set.

Source: SGLang 0.5.23, ``srt/entrypoints/http_server.py``, ``srt/managers/io_struct.py``,
``srt/managers/tokenizer_manager.py``, ``srt/utils/weight_versions.py``.
"""

import itertools
from collections.abc import Awaitable, Sequence
from http import HTTPStatus
from typing import Any, Literal

import msgspec
from msgspec import Struct

from backends.engines._broadcast import Piece
from backends.engines._serve.openai import OpenAI
from backends.engines._serve.routes import Route, Routes, Tokens, drawn_by
from backends.engines._serve.served import Made, ServedEngine
from backends.engines._serve.streams import stream_tokens
from backends.engines._serve.updates import Updates
from backends.engines._serve.web import Answer, Refused, Request, Send, as_json
from backends.engines.torch.engine import OnToken
from protocols.errors import ConductorError

VERSION = "0.5.23"


class _Sampling(Struct, frozen=True, kw_only=True):
    max_new_tokens: int = 128
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    sampling_seed: int | None = None
    stop_token_ids: Tokens | None = None
    ignore_eos: bool = False


class _Asked(Struct, kw_only=True):
    input_ids: Tokens
    sampling_params: _Sampling = _Sampling()
    rid: str = ""
    return_logprob: bool = False
    logprob_start_len: int = -1
    stream: bool = False


class _Abort(Struct):
    rid: str | None = None
    abort_all: bool = False


class _Pause(Struct):
    mode: Literal["abort", "retract", "in_place"] = "abort"


class _Update(Struct):
    model_path: str
    weight_version: str | None = None


class _Label(Struct):
    new_version: str
    abort_all_requests: bool = True


class _Join(Struct):
    master_address: str
    master_port: int
    rank_offset: int
    world_size: int
    group_name: str = "weight_update_group"
    backend: str = "nccl"


class _Leave(Struct):
    group_name: str = "weight_update_group"


class _Receive(Struct):
    names: list[str]
    dtypes: list[str]
    shapes: list[tuple[int, ...]]
    group_name: str = "weight_update_group"
    weight_version: str | None = None


class Sglang:
    """Answers SGLang's paths with an engine."""

    def __init__(self, served: ServedEngine) -> None:
        self._served = served
        self._updates = Updates(served)
        self._numbers = itertools.count()

    def routes(self) -> Routes:
        """Return the paths, OpenAI's among them."""
        return {
            **OpenAI(self._served).routes(),
            ("GET", "/health"): Route(self._health, "status"),
            ("GET", "/model_info"): Route(self._model_info, "status"),
            ("GET", "/server_info"): Route(self._server_info, "status"),
            ("GET", "/v1/loads"): Route(self._loads_now, "live_requests"),
            ("POST", "/generate"): Route(self._generate, "generate"),
            ("POST", "/abort_request"): Route(self._abort, "abort"),
            ("POST", "/pause_generation"): Route(self._pause, "pause"),
            ("POST", "/continue_generation"): Route(self._resume, "resume"),
            ("POST", "/update_weights_from_disk"): Route(self._update, "load_weights"),
            ("POST", "/begin_weight_update"): Route(self._begin),
            ("POST", "/init_weights_update_group"): Route(self._join, "load_weights"),
            ("POST", "/update_weights_from_distributed"): Route(self._receive),
            ("POST", "/end_weight_update"): Route(self._end),
            ("POST", "/destroy_weights_update_group"): Route(self._leave),
            ("POST", "/update_weight_version"): Route(self._relabel),
            ("POST", "/flush_cache"): Route(self._flush),
        }

    async def _health(self, _: Request) -> Answer:
        await self._served.engine.status()
        return Answer()

    async def _model_info(self, _: Request) -> Answer:
        served = self._served
        name, label = served.model, served.label
        return as_json({"model_path": name, "served_model_name": name, "is_generation": True, "weight_version": label})

    async def _server_info(self, _: Request) -> Answer:
        served = self._served
        info = {"version": VERSION, "context_length": served.context, "served_model_name": served.model}
        return as_json({**info, "tp_size": 1, "pp_size": 1, "dp_size": 1})

    async def _loads_now(self, _: Request) -> Answer:
        running, waiting = await self._served.busy()
        load = {"dp_rank": 0, "num_running_reqs": running, "num_waiting_reqs": waiting}
        return as_json({"version": VERSION, "loads": [load]})

    async def _abort(self, request: Request) -> Answer:
        asked = request.read(_Abort)
        if asked.abort_all or asked.rid:
            await self._served.abort(None if asked.abort_all else [asked.rid or ""])
        return Answer()

    async def _pause(self, request: Request) -> Answer:
        await self._served.pause("abort" if request.read(_Pause).mode == "abort" else "keep")
        return as_json({"message": "Generation paused successfully.", "status": "ok"})

    async def _resume(self, _: Request) -> Answer:
        await self._served.resume()
        return as_json({"message": "Generation continued successfully.", "status": "ok"})

    async def _update(self, request: Request) -> Answer:
        asked = request.read(_Update)
        try:
            await self._served.load(asked.model_path, label=asked.weight_version)
        except Refused as exc:
            body = {"success": False, "message": str(exc), "num_paused_requests": 0}
            return as_json(body, HTTPStatus.BAD_REQUEST)
        return as_json({"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0})

    async def _begin(self, _: Request) -> Answer:
        return await _answered(self._updates.begin())

    async def _end(self, _: Request) -> Answer:
        return await _answered(self._updates.end())

    async def _join(self, request: Request) -> Answer:
        asked = request.read(_Join)
        address = (asked.master_address, asked.master_port)
        joined = self._updates.join(address, asked.rank_offset, asked.world_size, asked.group_name, asked.backend)
        return await _answered(joined)

    async def _leave(self, request: Request) -> Answer:
        return await _answered(self._updates.leave(request.read(_Leave).group_name))

    async def _receive(self, request: Request) -> Answer:
        asked = request.read(_Receive)
        pieces = [Piece(*one) for one in zip(asked.names, asked.dtypes, asked.shapes, strict=True)]
        answer = await _answered(self._updates.receive(asked.group_name, pieces))
        if answer.status == HTTPStatus.OK and asked.weight_version is not None:
            await self._served.relabel(asked.weight_version)
        return answer

    async def _relabel(self, request: Request) -> Answer:
        asked = request.read(_Label)
        if asked.abort_all_requests:
            await self._served.abort(None)
        await self._served.relabel(asked.new_version)
        return as_json({"success": True, "message": "Weight version updated.", "new_version": asked.new_version})

    async def _flush(self, _: Request) -> Answer:
        return Answer(kind="text/plain", body=b"Cache flushed.\n")

    async def _generate(self, request: Request) -> Answer:
        asked = request.read(_Asked)
        drawn, prompt = asked.sampling_params, asked.input_ids
        name = asked.rid or str(next(self._numbers))
        sampling = drawn_by(self._served, prompt, drawn.max_new_tokens, drawn)
        stops = [*(drawn.stop_token_ids or ()), *(() if drawn.ignore_eos else self._served.tokenizer.stop_token_ids)]

        async def generate(on_token: OnToken | None = None) -> list[Made]:
            return await self._served.generate(
                name, prompt, sampling, stops=stops, seed=drawn.sampling_seed, on_token=on_token
            )

        if not asked.stream:
            (made,) = await generate()
            body = self._body(asked, name, (made.token_ids, made.logprobs), made)
            if asked.return_logprob and asked.logprob_start_len == 0:
                body["meta_info"]["input_token_logprobs"] = await self._scores(prompt)
            return as_json(body)
        tokens: list[int] = []
        logprobs: list[float] = []

        def each(_: int, token: int, logprob: float) -> bytes:
            tokens.append(token)
            logprobs.append(logprob)
            return msgspec.json.encode(self._body(asked, name, (tokens, logprobs)))

        def last(answers: Sequence[Made]) -> list[bytes]:
            return [msgspec.json.encode(self._body(asked, name, (tokens, logprobs), answers[0]))]

        async def stream(send: Send) -> None:
            await stream_tokens(send, generate, each=each, last=last, failed=_failed_event)

        return Answer(stream=stream)

    async def _scores(self, prompt: Tokens) -> list[tuple[float | None, int, None]]:
        scores = await self._served.engine.score(prompt)
        return [
            (None, prompt[0], None),
            *((score, token, None) for token, score in zip(prompt[1:], scores, strict=True)),
        ]

    def _body(
        self, asked: _Asked, name: str, made: tuple[Sequence[int], Sequence[float]], ended: Made | None = None
    ) -> dict[str, Any]:
        """Return a body that tells of all tokens so far; ``ended``: there will be no more."""
        tokens, logprobs = made
        label = self._served.label
        info: dict[str, Any] = {
            "id": name,
            "finish_reason": None if ended is None else _finish(ended, len(tokens)),
            "prompt_tokens": len(asked.input_ids),
            "completion_tokens": len(tokens),
            "cached_tokens": 0,
            "weight_version": label,
        }
        if ended is not None and ended.spans:
            info["weight_versions"] = [span.as_dict() for span in ended.spans]
            info["weight_version"] = ended.spans[-1].version
        if asked.return_logprob:
            info["output_token_logprobs"] = [(one, id_, None) for one, id_ in zip(logprobs, tokens, strict=True)]
        return {"text": self._served.tokenizer.decode(tokens), "output_ids": list(tokens), "meta_info": info}


async def _answered(updated: Awaitable[None]) -> Answer:
    """Answer with success, or what was refused."""
    try:
        await updated
    except Refused as exc:
        return as_json({"success": False, "message": str(exc)}, exc.status)
    return as_json({"success": True, "message": "Success"})


def _finish(made: Made, tokens: int) -> dict[str, Any]:
    match made.finish:
        case "stop":
            return {"type": "stop", "matched": made.token_ids[-1]}
        case "length":
            return {"type": "length", "length": tokens}
        case "abort":
            return {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}


def _failed_event(error: ConductorError) -> bytes:
    return msgspec.json.encode({"error": {"message": str(error), "type": "invalid_request_error", "code": 400}})
