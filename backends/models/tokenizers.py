"""Prompts to token ids and back."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from protocols.errors import BadPrompt
from protocols.prompts import ChatPrompt, PromptContent, TextPrompt, TokenPrompt

CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
"""What ``CharacterTokenizer`` does with a conversation, for the files that it saves."""


class Tokenizer(Protocol):
    """Turns what a model sees into token ids and back. Any thread may use it."""

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """The tokens that end a completion; empty where the model has none."""
        ...

    def encode(self, content: PromptContent) -> tuple[int, ...]:
        """Return the token ids of a prompt, at least one; ids that are given stay as they are.

        Raises:
            BadPrompt: It is empty, or holds what the model has no token for.
        """
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of ``token_ids`` without special tokens."""
        ...

    def token_id(self, text: str) -> int | None:
        """Return the single token that stands for ``text``; None where there is no such token."""
        ...

    def save(self, folder: Path) -> None:
        """Write the files from which ``transformers.AutoTokenizer`` loads an equal tokenizer."""
        ...


class CharacterTokenizer:
    """One token a character.

    Args:
        vocabulary: Different characters; the id of each is its place.
        end: The one that ends a completion; None where none does.
    """

    def __init__(self, vocabulary: str, end: str | None) -> None:
        self._vocabulary = vocabulary
        self._ids = {character: token_id for token_id, character in enumerate(vocabulary)}
        self._end = end

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """The end character's token, if there is one."""
        return () if self._end is None else (self._ids[self._end],)

    def encode(self, content: PromptContent) -> tuple[int, ...]:
        """Return one id a character; the messages of a conversation follow one another without a mark."""
        match content:
            case TokenPrompt(token_ids=token_ids):
                return _checked(token_ids, len(self._vocabulary))
            case TextPrompt(text=text):
                pass
            case ChatPrompt(messages=messages):
                text = "".join(message.content for message in messages)
        unknown = sorted(set(text) - self._ids.keys())
        if unknown:
            raise BadPrompt(f"the model has no token for {unknown[0]!r}")
        return _checked(tuple(self._ids[character] for character in text), len(self._vocabulary))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the characters, without the end character."""
        ended = set(self.stop_token_ids)
        return "".join(self._vocabulary[token_id] for token_id in token_ids if token_id not in ended)

    def token_id(self, text: str) -> int | None:
        """Return the id of a single character of the vocabulary."""
        return self._ids.get(text)

    def save(self, folder: Path) -> None:
        """Write the files of an equal Hugging Face tokenizer."""
        from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers  # noqa: PLC0415 - heavy
        from transformers import PreTrainedTokenizerFast  # noqa: PLC0415 - heavy

        inner = Tokenizer(models.WordLevel(self._ids))
        inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        inner.decoder = decoders.Fuse()
        special = {} if self._end is None else {"eos_token": self._end}
        outer = PreTrainedTokenizerFast(tokenizer_object=inner, clean_up_tokenization_spaces=False, **special)
        outer.chat_template = CHAT_TEMPLATE
        outer.save_pretrained(str(folder))


_: type[Tokenizer] = CharacterTokenizer


class HuggingFaceTokenizer:
    """A tokenizer of transformers.

    Args:
        inner: What ``transformers.AutoTokenizer`` gave.
        stop_token_ids: Further tokens that end a completion, beside the tokenizer's own.
    """

    def __init__(self, inner: Any, stop_token_ids: Sequence[int] = ()) -> None:
        self._inner = inner
        own = () if inner.eos_token_id is None else (inner.eos_token_id,)
        self._stop_token_ids = tuple(dict.fromkeys((*own, *stop_token_ids)))

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """The end-of-sequence tokens of tokenizer and model."""
        return self._stop_token_ids

    def encode(self, content: PromptContent) -> tuple[int, ...]:
        """Return the ids; a conversation goes through the chat template and ends where the answer starts."""
        match content:
            case TokenPrompt(token_ids=token_ids):
                return _checked(token_ids, len(self._inner))
            case TextPrompt(text=text):
                encoded = self._call(self._inner.encode, text)
            case ChatPrompt(messages=messages):
                turns = [{"role": message.role, "content": message.content} for message in messages]
                encoded = self._call(
                    self._inner.apply_chat_template, turns, add_generation_prompt=True, return_dict=False
                )
        return _checked(tuple(encoded), len(self._inner))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text as the tokenizer joins it."""
        return self._inner.decode(list(token_ids), skip_special_tokens=True)

    def token_id(self, text: str) -> int | None:
        """Return the token that has ``text`` for a name, or that ``text`` encodes to by itself."""
        named = self._inner.get_vocab().get(text)
        if named is not None:
            return named
        try:
            encoded = self._call(self._inner.encode, text, add_special_tokens=False)
        except BadPrompt:
            return None
        return encoded[0] if len(encoded) == 1 else None

    def save(self, folder: Path) -> None:
        """Write the tokenizer's own files."""
        self._inner.save_pretrained(str(folder))

    @staticmethod
    def _call(encode: Any, *args: Any, **kwargs: Any) -> list[int]:
        try:
            return encode(*args, **kwargs)
        except Exception as exc:  # chat templates raise whatever their author and jinja like
            raise BadPrompt(f"the tokenizer refused it: {type(exc).__name__}: {exc}") from exc


_: type[Tokenizer] = HuggingFaceTokenizer


def _checked(token_ids: tuple[int, ...], size: int) -> tuple[int, ...]:
    if not token_ids:
        raise BadPrompt("the prompt is empty")
    strange = [token_id for token_id in token_ids if not 0 <= token_id < size]
    if strange:
        raise BadPrompt(f"the model has no token {strange[0]}; its tokens are 0 to {size - 1}")
    return token_ids
