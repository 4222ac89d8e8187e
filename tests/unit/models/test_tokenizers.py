"""Prompts to token ids and back."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from backends.models.tokenizers import CharacterTokenizer, HuggingFaceTokenizer, Tokenizer
from protocols.errors import BadPrompt
from protocols.prompts import ChatMessage, ChatPrompt, PromptContent, TextPrompt, TokenPrompt

VOCABULARY = "01 \n=."
PROMPTS: tuple[PromptContent, ...] = (
    TextPrompt(text="1 0=\n1."),
    ChatPrompt(messages=(ChatMessage(role="system", content="1 0"), ChatMessage(role="user", content="=."))),
    TokenPrompt(token_ids=(5, 0, 3)),
)


@pytest.fixture(params=["characters", "saved", "saved_twice"])
def tokenizer(request: pytest.FixtureRequest, tmp_path: Path) -> Tokenizer:
    """A tokenizer of characters, and what transformers makes of its files."""
    tokenizer: Tokenizer = CharacterTokenizer(VOCABULARY, ".")
    for copy in range({"characters": 0, "saved": 1, "saved_twice": 2}[request.param]):
        folder = tmp_path / str(copy)
        tokenizer.save(folder)
        tokenizer = HuggingFaceTokenizer(AutoTokenizer.from_pretrained(folder))
    return tokenizer


def test_a_character_is_a_token(tokenizer: Tokenizer) -> None:
    assert [tokenizer.encode(prompt) for prompt in PROMPTS] == [
        (1, 2, 0, 4, 3, 1, 5),
        (1, 2, 0, 4, 5),
        (5, 0, 3),
    ]


def test_text_leaves_the_end_out(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode((1, 2, 0, 4, 3, 1, 5)) == "1 0=\n1"
    assert tokenizer.decode([]) == ""


def test_stops_are_single_tokens(tokenizer: Tokenizer) -> None:
    assert tokenizer.stop_token_ids == (5,)
    assert tokenizer.token_id("=") == 4
    assert tokenizer.token_id("\n") == 3
    assert tokenizer.token_id(".") == 5
    assert tokenizer.token_id("01") is None
    assert tokenizer.token_id("x") is None


@pytest.mark.parametrize(
    "content",
    [
        TextPrompt(text="0x1"),
        TextPrompt(text=""),
        ChatPrompt(messages=()),
        ChatPrompt(messages=(ChatMessage(role="user", content="é"),)),
        TokenPrompt(token_ids=()),
        TokenPrompt(token_ids=(0, 6)),
        TokenPrompt(token_ids=(-1,)),
    ],
)
def test_what_has_no_tokens_is_a_bad_prompt(tokenizer: Tokenizer, content: PromptContent) -> None:
    """One bad prompt is dropped and counted, it does not end the run."""
    with pytest.raises(BadPrompt):
        tokenizer.encode(content)


@given(st.text(VOCABULARY[:-1], min_size=1))
def test_text_survives_the_way_there_and_back(text: str) -> None:
    tokenizer = CharacterTokenizer(VOCABULARY, ".")
    assert tokenizer.decode(tokenizer.encode(TextPrompt(text=text))) == text


def test_without_an_end_nothing_stops() -> None:
    tokenizer = CharacterTokenizer("ab", None)
    assert tokenizer.stop_token_ids == ()
    assert tokenizer.decode((0, 1)) == "ab"


def test_a_chat_ends_where_the_answer_starts(tmp_path: Path) -> None:
    CharacterTokenizer("user:ai>|", "|").save(tmp_path)
    inner = AutoTokenizer.from_pretrained(tmp_path)
    inner.chat_template = (
        "{% for m in messages %}{{ m.role + ':' + m.content }}{% endfor %}{% if add_generation_prompt %}ai>{% endif %}"
    )
    tokenizer = HuggingFaceTokenizer(inner, stop_token_ids=(8, 7))
    prompt = ChatPrompt(messages=(ChatMessage(role="user", content="sure"),))
    assert tokenizer.decode(tokenizer.encode(prompt)) == "user:sureai>"
    assert tokenizer.stop_token_ids == (8, 7), "each once"


def test_a_chat_template_that_refuses_makes_a_bad_prompt(tmp_path: Path) -> None:
    """Templates raise on roles that they do not know."""
    CharacterTokenizer("ab", None).save(tmp_path)
    inner = AutoTokenizer.from_pretrained(tmp_path)
    inner.chat_template = "{{ raise_exception('only user and assistant') }}"
    with pytest.raises(BadPrompt, match="only user and assistant"):
        HuggingFaceTokenizer(inner).encode(ChatPrompt(messages=(ChatMessage(role="tool", content="a"),)))
