"""The part of OpenAI's interface that its clients need: models, completions, chat completions.

Source: ``vllm/entrypoints/openai`` of vLLM 0.32, and the types of the ``openai`` client 3.57.
"""

import itertools
import time
from http import HTTPStatus
from typing import Any, Literal

import anyio.to_thread
from msgspec import Struct

from backends.engines._serve.replies import ChatReply, CompletionReply, Reply
from backends.engines._serve.routes import Route, Routes, Tokens, drawn_by, failed
from backends.engines._serve.served import Made, ServedEngine
from backends.engines._serve.streams import stream_tokens
from backends.engines._serve.web import Answer, Refused, Request, Send, as_json
from backends.engines.torch.engine import OnToken
from protocols.errors import Transient
from protocols.prompts import ChatMessage, ChatPrompt, PromptContent, TextPrompt, TokenPrompt

_DEFAULT_TOKENS = 16


class _Asked(Struct, kw_only=True):
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    n: int = 1
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: Tokens = []
    ignore_eos: bool = False
    stream: bool = False
    request_id: str = ""
    return_token_ids: bool = False


class CompletionAsked(_Asked, kw_only=True):
    """A body of ``/v1/completions``; ``logprobs`` is a number there."""

    prompt: str | Tokens
    logprobs: int | None = None
    echo: bool = False


class _Turn(Struct):
    role: Literal["system", "user", "assistant", "developer", "tool"]
    content: str


class ChatAsked(_Asked, kw_only=True):
    """A body of ``/v1/chat/completions``; ``logprobs`` is a switch there."""

    messages: list[_Turn]
    max_completion_tokens: int | None = None
    logprobs: bool = False


class OpenAI:
    """Answers OpenAI's paths with an engine."""

    def __init__(self, served: ServedEngine) -> None:
        self._served = served
        self._numbers = itertools.count()

    def routes(self) -> Routes:
        """Return the paths."""
        return {
            ("GET", "/v1/models"): Route(self._models, "status"),
            ("POST", "/v1/completions"): Route(self._completions, "generate"),
            ("POST", "/v1/chat/completions"): Route(self._chat, "generate"),
        }

    async def _models(self, _: Request) -> Answer:
        served = self._served
        card = {"id": served.model, "object": "model", "created": int(time.time()), "owned_by": "conductor"}
        return as_json({"object": "list", "data": [{**card, "max_model_len": served.context}]})

    async def _completions(self, request: Request) -> Answer:
        asked = request.read(CompletionAsked)
        if asked.echo:
            raise Refused(HTTPStatus.BAD_REQUEST, "echo is not supported")
        text = asked.prompt
        content = TextPrompt(text=text) if isinstance(text, str) else TokenPrompt(token_ids=tuple(text))
        reply = CompletionReply(self._served, self._name("cmpl", asked), logprobs=asked.logprobs is not None)
        return await self._respond(asked, content, reply, asked.max_tokens or _DEFAULT_TOKENS)

    async def _chat(self, request: Request) -> Answer:
        asked = request.read(ChatAsked)
        content = ChatPrompt(
            messages=tuple(ChatMessage(role=turn.role, content=turn.content) for turn in asked.messages)
        )
        reply = ChatReply(self._served, self._name("chatcmpl", asked), logprobs=asked.logprobs)
        longest = asked.max_completion_tokens or asked.max_tokens or self._served.context
        return await self._respond(asked, content, reply, longest)

    def _name(self, kind: str, asked: _Asked) -> str:
        return f"{kind}-{asked.request_id or next(self._numbers)}"

    async def _respond(self, asked: _Asked, content: PromptContent, reply: Reply, longest: int) -> Answer:
        prompt = await anyio.to_thread.run_sync(self._served.tokenizer.encode, content)
        sampling = drawn_by(self._served, prompt, longest, asked)
        stops = self._stops(asked)
        reply.prompt_tokens, reply.token_ids = len(prompt), asked.return_token_ids

        async def generate(on_token: OnToken | None = None) -> list[Made]:
            made = await self._served.generate(
                reply.name, prompt, sampling, stops=stops, seed=asked.seed, count=asked.n, on_token=on_token
            )
            if any(one.finish == "abort" for one in made):
                raise Transient(f"{reply.name} was aborted")
            return made

        if not asked.stream:
            return as_json(reply.whole(await generate()))

        async def stream(send: Send) -> None:
            await stream_tokens(
                send, generate, each=reply.delta, last=reply.closing, failed=lambda error: failed(error).body
            )

        return Answer(stream=stream)

    def _stops(self, asked: _Asked) -> list[int]:
        tokenizer = self._served.tokenizer
        stops = [*asked.stop_token_ids, *(() if asked.ignore_eos else tokenizer.stop_token_ids)]
        texts: Any = [asked.stop] if isinstance(asked.stop, str) else asked.stop or []
        for text in texts:
            token = tokenizer.token_id(text)
            if token is None:
                raise Refused(HTTPStatus.BAD_REQUEST, f"stop {text!r} is not a single token of the model")
            stops.append(token)
        return stops
