"""What users write as a prompt, turned into messages. Every kind of source shares it."""

from collections.abc import Mapping
from typing import Any

import msgspec

from protocols.errors import BadPrompt
from protocols.prompts import ChatMessage, ChatPrompt, Prompt, PromptContent, TextPrompt, TokenPrompt

_FORMS = "a prompt is text, a list of {role, content} or a list of token ids"


def prompt_of(record: Mapping[str, Any], field: str, *, position: int, epoch: int) -> Prompt:
    """Build a prompt from one record: ``field`` is what the model sees, the rest goes to the reward.

    The prompt comes back as it leaves a message, so that a reward sees the same on every backend.

    Raises:
        BadPrompt: The record has no prompt, or holds what no message can carry.
    """
    if field not in record:
        raise BadPrompt(f"it has no field '{field}' (it has: {', '.join(map(str, record)) or 'nothing'})")
    fields = {name: value for name, value in record.items() if name != field}
    prompt = Prompt(position=position, epoch=epoch, content=content_of(record[field]), fields=fields)
    try:
        return msgspec.msgpack.decode(msgspec.msgpack.encode(prompt), type=Prompt)
    except (TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise BadPrompt(f"it holds what is no JSON value: {exc}") from exc


def content_of(value: object) -> PromptContent:
    """Turn a user's prompt into what the model sees.

    Raises:
        BadPrompt: It is none of the three forms, or it is empty.
    """
    if not isinstance(value, str | list | tuple):
        raise BadPrompt(f"{_FORMS}, not {type(value).__name__}")
    if not value:
        raise BadPrompt(f"{_FORMS}, not an empty one")
    if isinstance(value, str):
        return TextPrompt(text=value)
    try:
        if isinstance(value[0], int):
            return TokenPrompt(token_ids=msgspec.convert(value, tuple[int, ...]))
        return ChatPrompt(messages=msgspec.convert(value, tuple[ChatMessage, ...]))
    except msgspec.ValidationError as exc:
        raise BadPrompt(f"{_FORMS}: {exc}") from exc
