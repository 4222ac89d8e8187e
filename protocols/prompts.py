"""Prompts, and the port that owns their order."""

from typing import Any, Protocol

import msgspec

from protocols.messages import Message


class TextPrompt(Message, frozen=True, kw_only=True, tag="text"):
    """Plain text; the tokenizer turns it into tokens as it stands."""

    text: str


class ChatMessage(Message, frozen=True, kw_only=True):
    """One message of a conversation."""

    role: str
    content: str


class ChatPrompt(Message, frozen=True, kw_only=True, tag="chat"):
    """A conversation; the tokenizer's chat template turns it into tokens."""

    messages: tuple[ChatMessage, ...]


class TokenPrompt(Message, frozen=True, kw_only=True, tag="tokens"):
    """Token ids, used as they are."""

    token_ids: tuple[int, ...]


PromptContent = TextPrompt | ChatPrompt | TokenPrompt


class Prompt(Message, frozen=True, kw_only=True, tag="prompt"):
    """What a group lease lends: one task, as its source drew it.

    Attributes:
        position: Number in the order of drawing, from 0, over all epochs. It seeds the random streams.
        epoch: Which pass over the data it belongs to, from 0.
        content: What the model sees.
        fields: Handed to the reward function by name; JSON values.
    """

    position: int
    epoch: int = 0
    content: PromptContent
    fields: dict[str, Any] = {}


class SourceState(Message, frozen=True, kw_only=True):
    """Where a source stands: the position of the next prompt, and what its order depends on."""

    position: int
    seed: int


class PromptSourcePort(Protocol):
    """Order and position of the prompts. One caller at a time."""

    async def draw(self) -> Prompt | None:
        """Return the next prompt, or None when there is none left (and from then on).

        Not idempotent. Cancelling it may lose the prompt only if ``state`` does not count it: it may be called again.

        Raises:
            DataFault: This one is unreadable; the next call goes on behind it.
        """
        ...

    async def state(self) -> SourceState:
        """Return where the source stands; the next ``draw`` gives ``state().position``."""
        ...

    async def restore(self, state: SourceState) -> None:
        """Continue from ``state``: the same prompts in the same order as the source that gave it.

        Raises:
            UserError: The state belongs to other data.
        """
        ...

    async def fingerprint(self) -> str:
        """Return a digest that changes when the prompts or their order would."""
        ...

    async def epoch_length(self) -> int | None:
        """Return the number of prompts in one epoch; None where the source knows none."""
        ...


def preview(text: str, limit: int = 200) -> str:
    """Cut ``text`` to at most ``limit`` characters for people to read."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def content_preview(content: PromptContent) -> str:
    """Return a short text of a prompt for people to read."""
    match content:
        case TextPrompt(text=text):
            return preview(text)
        case ChatPrompt(messages=messages):
            return preview("\n".join(f"{message.role}: {message.content}" for message in messages))
        case TokenPrompt(token_ids=token_ids):
            return preview(msgspec.json.encode(token_ids).decode())
