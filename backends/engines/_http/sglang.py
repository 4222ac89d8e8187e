"""SGLang's paths and bodies, version 0.5.23, read in its source.

Source: ``srt/entrypoints/http_server.py``, ``srt/managers/io_struct.py``, ``srt/managers/tokenizer_manager.py``,
``srt/utils/weight_versions.py``.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Literal

from msgspec import Struct

from backends.engines._http.cargo import Broadcast, Cargo
from backends.engines._http.connection import Connection
from backends.engines._http.dialect import Answered, Dialect, LabelledSpan, Scored, ServerState, seed_of
from backends.engines._http.together import together
from backends.engines._http.update_group import update_by_broadcast
from backends.engines._http.window import Load
from protocols.errors import Transient
from protocols.inference import GenerateRequest, SampleRequest

_GENERATE = "/generate"
_ALL_TOKENS = -1


class _ModelInfo(Struct):
    weight_version: str


class _ServerInfo(Struct):
    context_length: int | None = None
    max_req_input_len: int | None = None


class _Load(Struct):
    num_running_reqs: int
    num_waiting_reqs: int
    token_usage: float = 0.0


class _Loads(Struct):
    loads: list[_Load]


class _Finish(Struct):
    type: Literal["stop", "length", "abort"]


class _Span(Struct):
    version: str
    start: int
    end: int


_Token = tuple[float | None, int, Any]


class _Meta(Struct):
    finish_reason: _Finish
    output_token_logprobs: list[_Token] = []
    input_token_logprobs: list[_Token] = []
    weight_versions: list[_Span] = []


class _Generated(Struct):
    meta_info: _Meta


class SglangDialect:
    """Speaks to an SGLang server."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._paused = False

    async def healthy(self) -> None:
        """Ask for its health."""
        await self._connection.get_text("/health")

    async def context(self) -> int:
        """Return ``--context-length``.

        Raises:
            Transient: The server does not say it.
        """
        info = await self._connection.get("/server_info", _ServerInfo)
        found = info.context_length or info.max_req_input_len
        if found is None:
            raise Transient(f"{self._connection.name} does not say its context; start it with --context-length")
        return found

    async def state(self) -> ServerState:
        """Ask for the label; the interface does not tell of a pause, so it is the one that was asked for last."""
        info = await self._connection.get("/model_info", _ModelInfo)
        return ServerState(info.weight_version, self._paused)

    async def load(self) -> Load:
        """Add up the loads of its ranks; of their caches the fullest counts."""
        loads = (await self._connection.get("/v1/loads", _Loads)).loads
        running, waiting = sum(one.num_running_reqs for one in loads), sum(one.num_waiting_reqs for one in loads)
        return Load(running, waiting, max((one.token_usage for one in loads), default=0.0))

    def refusal(self, request: GenerateRequest) -> str | None:  # noqa: ARG002 - its log-probabilities are the port's
        """Refuse nothing."""
        return None

    async def generate(
        self, sample: SampleRequest, request: GenerateRequest, salt: str, undo: Callable[[], Awaitable[None]]
    ) -> Answered:
        """Generate one sample."""
        drawn = request.sampling
        body = {
            "rid": sample.request_id,
            "input_ids": request.prompt_ids,
            "extra_key": salt,
            "return_logprob": True,
            "sampling_params": {
                "max_new_tokens": drawn.max_tokens,
                "temperature": drawn.temperature,
                "top_p": drawn.top_p,
                "top_k": drawn.top_k or _ALL_TOKENS,
                "sampling_seed": seed_of(sample.stream),
                "stop_token_ids": request.stop_token_ids,
                "ignore_eos": True,
            },
        }
        reply = await self._connection.post(_GENERATE, body, _Generated, before_again=undo)
        told = reply.meta_info.output_token_logprobs
        return Answered(
            token_ids=[token for _, token, _ in told],
            logprobs=[min(0.0, logprob or 0.0) for logprob, _, _ in told],
            spans=[LabelledSpan(span.version, span.end - span.start) for span in reply.meta_info.weight_versions],
            finish=reply.meta_info.finish_reason.type,
        )

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Ask for the end of requests, one by one: the path knows whole ids alone."""
        await together(
            "abort", [partial(self._connection.post, "/abort_request", {"rid": name}) for name in request_ids]
        )

    async def pause(self) -> None:
        """Pause, keeping requests and their cache."""
        await self._connection.post("/pause_generation", {"mode": "in_place"})
        self._paused = True

    async def resume(self) -> None:
        """Continue."""
        await self._connection.post("/continue_generation", {})
        self._paused = False

    async def publish(self, cargo: Cargo, label: str, loading: str) -> None:
        """Load from a folder, or what is sent. Should that fail half-way, the label that stands there is nobody's."""
        await self._label(loading)
        if isinstance(cargo, Broadcast):
            await update_by_broadcast(self._connection, cargo, label)
            await self._label(label)
            return
        # what was computed before stays under its own extra_key, and a cache in use cannot be flushed
        update = {"model_path": str(cargo.path), "weight_version": label, "flush_cache": False}
        await self._connection.post("/update_weights_from_disk", update)

    async def score(self, token_ids: Sequence[int]) -> Sequence[Scored]:
        """Have the tokens read as a prompt."""
        body = {
            "input_ids": token_ids,
            "return_logprob": True,
            "logprob_start_len": 0,
            "sampling_params": {"max_new_tokens": 1, "temperature": 1.0},
        }
        reply = await self._connection.post(_GENERATE, body, _Generated)
        found = [logprob for logprob, _, _ in reply.meta_info.input_token_logprobs[1:] if logprob is not None]
        return [Scored(self._connection.name, found)]

    async def _label(self, label: str) -> None:
        await self._connection.post("/update_weight_version", {"new_version": label, "abort_all_requests": False})


_: type[Dialect] = SglangDialect
