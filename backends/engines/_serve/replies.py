"""Bodies that OpenAI's clients read: whole, and in pieces."""

import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec

from backends.engines._serve.served import Made, ServedEngine

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""What a tokenizer writes where the bytes of a character are not all there yet."""


class Reply(ABC):
    """Makes the bodies that answer one request.

    Args:
        served: Whose tokenizer and name are used.
        name: Of the request.
        logprobs: Whether log-probabilities are told.

    Attributes:
        prompt_tokens: Length of the prompt.
        token_ids: Whether token ids are told, as vLLM does.
    """

    whole_kind: str
    piece_kind: str

    def __init__(self, served: ServedEngine, name: str, *, logprobs: bool) -> None:
        self.name = name
        self.prompt_tokens = 0
        self.token_ids = False
        self._tokenizer = served.tokenizer
        self._model = served.model
        self._logprobs = logprobs
        self._created = int(time.time())
        self._tokens: defaultdict[int, list[int]] = defaultdict(list)
        self._told: defaultdict[int, int] = defaultdict(int)

    @abstractmethod
    def _choice(self, text: str, tokens: Sequence[int], logprobs: Sequence[float], *, piece: bool) -> dict[str, Any]:
        """Return what is particular to this kind of reply."""

    def whole(self, answers: Sequence[Made]) -> dict[str, Any]:
        """Return the body of a request that is not streamed."""
        choices = [
            self._numbered(index, self._tokenizer.decode(made.token_ids), made.token_ids, made.logprobs, made.finish)
            for index, made in enumerate(answers)
        ]
        return {**self._head(self.whole_kind), "choices": choices, "usage": self._usage(answers)}

    def delta(self, number: int, token: int, logprob: float) -> bytes:
        """Return the event of one more token; its text may come with a later one."""
        tokens = self._tokens[number]
        tokens.append(token)
        text = self._tokenizer.decode(tokens)
        fresh = "" if text.endswith(_UNFINISHED) else text[self._told[number] :]
        self._told[number] += len(fresh)
        return self._event(self._numbered(number, fresh, (token,), (logprob,), None, piece=True))

    def closing(self, answers: Sequence[Made]) -> list[bytes]:
        """Return the events that say how each answer ended."""
        rest = [self._tokenizer.decode(made.token_ids)[self._told[index] :] for index, made in enumerate(answers)]
        return [
            self._event(self._numbered(index, rest[index], (), (), made.finish, piece=True))
            for index, made in enumerate(answers)
        ]

    def _event(self, choice: dict[str, Any]) -> bytes:
        return msgspec.json.encode({**self._head(self.piece_kind), "choices": [choice]})

    def _numbered(
        self,
        index: int,
        text: str,
        tokens: Sequence[int],
        logprobs: Sequence[float],
        finish: str | None,
        *,
        piece: bool = False,
    ) -> dict[str, Any]:
        choice = {"index": index, "finish_reason": finish, "stop_reason": None}
        if self.token_ids:
            choice["token_ids"] = list(tokens)
        return choice | self._choice(text, tokens, logprobs, piece=piece)

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.name, "object": kind, "created": self._created, "model": self._model}

    def _usage(self, answers: Sequence[Made]) -> dict[str, int]:
        made = sum(len(answer.token_ids) for answer in answers)
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": made,
            "total_tokens": self.prompt_tokens + made,
        }

    def _words(self, tokens: Sequence[int]) -> list[str]:
        return [self._tokenizer.decode((token,)) for token in tokens]


class CompletionReply(Reply):
    """Of ``/v1/completions``."""

    whole_kind = piece_kind = "text_completion"

    def _choice(self, text: str, tokens: Sequence[int], logprobs: Sequence[float], *, piece: bool) -> dict[str, Any]:  # noqa: ARG002 - both are the same here
        if not self._logprobs:
            return {"text": text, "logprobs": None}
        words = self._words(tokens)
        lengths = [len(word) for word in words]
        offsets = [sum(lengths[:place]) for place in range(len(words))]
        told = {"tokens": words, "token_logprobs": list(logprobs), "top_logprobs": None, "text_offset": offsets}
        return {"text": text, "logprobs": told}


class ChatReply(Reply):
    """Of ``/v1/chat/completions``."""

    whole_kind = "chat.completion"
    piece_kind = "chat.completion.chunk"

    def _choice(self, text: str, tokens: Sequence[int], logprobs: Sequence[float], *, piece: bool) -> dict[str, Any]:
        told = None
        if self._logprobs:
            pairs = zip(self._words(tokens), logprobs, strict=True)
            content = [
                {"token": word, "logprob": logprob, "bytes": list(word.encode()), "top_logprobs": []}
                for word, logprob in pairs
            ]
            told = {"content": content, "refusal": None}
        return {"delta" if piece else "message": {"role": "assistant", "content": text}, "logprobs": told}
