"""vLLM's paths and bodies, version 0.32, as ``backends.engines.vllm`` tells of them."""

import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Literal

from msgspec import Struct

from backends.engines._http.cargo import Broadcast, Cargo
from backends.engines._http.connection import Connection
from backends.engines._http.dialect import Answered, Dialect, LabelledSpan, Scored, ServerState, seed_of
from backends.engines._http.window import Load
from protocols.errors import Transient
from protocols.inference import GenerateRequest, SampleRequest

_NAMED = "generate-tokens-"
"""What the server puts before a request's id. An abort without it is answered as if it had ended something."""

_ADAPTER = "conductor"
"""What adapters are called as a model."""

_GENERATE = "/inference/v1/generate"
_RUNNING, _WAITING, _CACHE = "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"
_GAUGE = re.compile(rf"^vllm:({_RUNNING}|{_WAITING}|{_CACHE})(?:{{[^}}]*}})? ([0-9.e+-]+)$", re.MULTILINE)


class _Label(Struct):
    weight_version: str


class _Paused(Struct):
    is_paused: bool


class _Card(Struct):
    max_model_len: int


class _Models(Struct):
    data: list[_Card]


class _World(Struct):
    world_size: int


class _Span(Struct):
    version: str
    start: int
    end: int


class _Logprob(Struct):
    logprob: float


class _Logprobs(Struct):
    content: list[_Logprob] | None = None


class _Choice(Struct):
    finish_reason: Literal["stop", "length", "abort"]
    token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    weight_versions: list[_Span] | None = None


class _Generated(Struct):
    choices: list[_Choice]
    prompt_logprobs: list[dict[str, _Logprob] | None] | None = None


class VllmDialect:
    """Speaks to a vLLM server.

    Args:
        connection: To it.
        logprobs: What its log-probabilities are of: ``raw`` logits, or ``processed`` ones.
        reload: The method of its workers that loads weights.
        adapters: Whether weights are adapters of the model that it was started with.
    """

    def __init__(
        self,
        connection: Connection,
        logprobs: Literal["raw", "processed"],
        reload: str = "reload_weights",
        *,
        adapters: bool = False,
    ) -> None:
        self._connection = connection
        self._logprobs = logprobs
        self._reload = reload
        self._named = {"model": _ADAPTER} if adapters else {}

    async def healthy(self) -> None:
        """Ask for its health."""
        await self._connection.get_text("/health")

    async def context(self) -> int:
        """Return ``--max-model-len``."""
        return (await self._connection.get("/v1/models", _Models)).data[0].max_model_len

    async def state(self) -> ServerState:
        """Ask for label and pause."""
        label = await self._connection.get("/weight_info", _Label)
        paused = await self._connection.get("/is_paused", _Paused)
        return ServerState(label.weight_version, paused.is_paused)

    async def load(self) -> Load:
        """Add up what the metrics say of all its engines; of their caches the fullest counts."""
        found: dict[str, list[float]] = {}
        for gauge, value in _GAUGE.findall(await self._connection.get_text("/metrics")):
            found.setdefault(gauge, []).append(float(value))
        if _RUNNING not in found or _WAITING not in found:
            raise Transient(f"{self._connection.name} does not say in its metrics how many requests run")
        return Load(int(sum(found[_RUNNING])), int(sum(found[_WAITING])), max(found.get(_CACHE, [0.0])))

    def refusal(self, request: GenerateRequest) -> str | None:
        """Say where they are not of the logits over the temperature, before ``top_p`` and ``top_k``."""
        drawn = request.sampling
        if self._logprobs == "raw" and drawn.temperature not in {0.0, 1.0}:
            return "at this temperature it needs --logprobs-mode processed_logprobs, and engine.logprobs = 'processed'"
        if self._logprobs == "processed" and (drawn.top_p < 1 or drawn.top_k > 0):
            return (
                "with top_p or top_k it needs --logprobs-mode raw_logprobs, engine.logprobs = 'raw' and temperature 1"
            )
        return None

    async def generate(
        self, sample: SampleRequest, request: GenerateRequest, salt: str, undo: Callable[[], Awaitable[None]]
    ) -> Answered:
        """Generate one sample."""
        drawn = request.sampling
        body = {
            **self._named,
            "request_id": sample.request_id,
            "token_ids": request.prompt_ids,
            "cache_salt": salt,
            "sampling_params": {
                "max_tokens": drawn.max_tokens,
                "temperature": drawn.temperature,
                "top_p": drawn.top_p,
                "top_k": drawn.top_k,
                "seed": seed_of(sample.stream),
                "stop_token_ids": request.stop_token_ids,
                "ignore_eos": True,
                "detokenize": False,
                "logprobs": 0,  # of the drawn token alone
            },
        }
        reply = await self._connection.post(_GENERATE, body, _Generated, before_again=undo)
        choice = reply.choices[0]
        content = [] if choice.logprobs is None else choice.logprobs.content or []
        return Answered(
            token_ids=choice.token_ids or [],
            logprobs=[min(0.0, one.logprob) for one in content],
            spans=[LabelledSpan(span.version, span.end - span.start) for span in choice.weight_versions or ()],
            finish=choice.finish_reason,
        )

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Ask for the end of requests."""
        await self._connection.post("/abort_requests", {"request_ids": [_NAMED + name for name in request_ids]})

    async def pause(self) -> None:
        """Pause, keeping requests and their cache; unless told, it drops that, and the next weights compute it anew."""
        await self._connection.post("/pause?mode=keep&clear_cache=false", {})

    async def resume(self) -> None:
        """Resume."""
        await self._connection.post("/resume", {})

    async def publish(self, cargo: Cargo, label: str, loading: str) -> None:
        """Reload. The label does not follow by itself, so another one stands there in between."""
        await self._label(loading)
        if isinstance(cargo, Broadcast):
            workers = await self._connection.get("/get_world_size", _World)
            await cargo.send(self._connection.name, workers.world_size, partial(self._call, "conductor_receive"))
        elif self._named:
            adapter = {"lora_name": _ADAPTER, "lora_path": str(cargo.path), "load_inplace": True}
            await self._connection.tell("/v1/load_lora_adapter", adapter)
        else:
            await self._call(self._reload, {"weights_path": str(cargo.path)})
        await self._label(label)

    async def score(self, token_ids: Sequence[int]) -> Sequence[Scored]:
        """Have the tokens read as a prompt."""
        drawn = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0, "detokenize": False}
        body = {**self._named, "token_ids": token_ids, "sampling_params": drawn}
        reply = await self._connection.post(_GENERATE, body, _Generated)
        told = (reply.prompt_logprobs or [])[1:]
        found = [one[str(token)].logprob for token, one in zip(token_ids[1:], told, strict=True) if one is not None]
        return [Scored(self._connection.name, found)]

    async def _call(self, method: str, kwargs: Any) -> None:
        await self._connection.post("/collective_rpc", {"method": method, "kwargs": kwargs})

    async def _label(self, label: str) -> None:
        await self._connection.post("/update_weight_version", {"new_version": label})


_: type[Dialect] = VllmDialect
