"""Prompts from a Python function."""

from pathlib import Path

import pytest

from backends.prompts import function
from backends.sim.payloads import ScriptedPayloads
from protocols.adapters import Host
from protocols.errors import BadPrompt, UserError
from protocols.prompts import ChatMessage, ChatPrompt, SourceState, TextPrompt, TokenPrompt
from protocols.sections import Site
from tests.support.texts import exactly

FORMS = """
def prompt(index, seed):
    chat = [{"role": "user", "content": "hi"}]
    return ["text", [3, 4], chat, {"prompt": (1, 2), "n": index, "seed": seed}, None][index]
"""


def write(folder: Path, code: str) -> function.Config:
    (folder / "tasks.py").write_text(code)
    return function.Config(function="tasks.py:prompt")


def host(folder: Path, seed: int = 0) -> Host:
    return Host(site=Site(job_dir=str(folder), seed=seed), payloads=ScriptedPayloads())


async def test_every_form_of_prompt(tmp_path: Path) -> None:
    async with function.open(write(tmp_path, FORMS), host(tmp_path, seed=9)) as source:
        drawn = [await source.draw() for _ in range(6)]
        assert await source.epoch_length() is None
    prompts = [prompt for prompt in drawn if prompt is not None]
    assert [prompt.content for prompt in prompts] == [
        TextPrompt(text="text"),
        TokenPrompt(token_ids=(3, 4)),
        ChatPrompt(messages=(ChatMessage(role="user", content="hi"),)),
        TokenPrompt(token_ids=(1, 2)),
    ]
    assert prompts[-1].fields == {"n": 3, "seed": 9}
    assert drawn[4:] == [None, None]


async def test_a_finite_function_can_be_set_back_from_its_end(tmp_path: Path) -> None:
    """I56: exhausted was mistaken for fresh."""
    async with function.open(write(tmp_path, FORMS), host(tmp_path)) as source:
        while await source.draw() is not None:
            pass
        await source.restore(SourceState(position=3, seed=0))
        prompt = await source.draw()
        assert prompt is not None
        assert prompt.position == 3
        assert await source.draw() is None


async def test_an_epoch_asks_for_the_same_indices(tmp_path: Path) -> None:
    write(tmp_path, "def prompt(index, seed):\n    return f'{seed}:{index}'\n")
    cfg = function.Config(function="tasks.py:prompt", epoch_length=2, epochs=2)
    async with function.open(cfg, host(tmp_path, seed=4)) as source:
        drawn = [await source.draw() for _ in range(5)]
    assert [prompt and (prompt.position, prompt.epoch, prompt.content) for prompt in drawn] == [
        (0, 0, TextPrompt(text="4:0")),
        (1, 0, TextPrompt(text="4:1")),
        (2, 1, TextPrompt(text="4:0")),
        (3, 1, TextPrompt(text="4:1")),
        None,
    ]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("raise ValueError('no luck')", "ValueError: no luck"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("import asyncio; raise asyncio.CancelledError", "CancelledError"),
        ("raise StopIteration", "StopIteration"),
        ("return 7", "not int"),
        ("return {'answer': 1}", "no field 'prompt'"),
        ("return {'prompt': 'a', 'answer': object()}", "no JSON value"),
        ("return {'prompt': 'a', 3: 4, 'answer': 10 ** 40}", "no JSON value"),
        ("return '\\udcff'", "no JSON value"),
    ],
)
async def test_what_user_code_does_wrong_costs_its_prompt(tmp_path: Path, body: str, why: str) -> None:
    """I18: nothing that user code raises ends the run, not even what usually ends a program."""
    cfg = write(tmp_path, f"def prompt(index, seed):\n    if index != 1:\n        return 'good'\n    {body}\n")
    async with function.open(cfg, host(tmp_path)) as source:
        await source.draw()
        with pytest.raises(BadPrompt) as fault:
            await source.draw()
        assert why in fault.value.message
        assert "tasks.py:prompt(1, 0)" in fault.value.message
        prompt = await source.draw()
        assert prompt is not None
        assert prompt.position == 2


async def test_the_fingerprint_sees_what_the_function_gives(tmp_path: Path) -> None:
    async def fingerprint(name: str, code: str, seed: int = 0) -> str:
        (tmp_path / name).write_text(code)
        async with function.open(function.Config(function=f"{name}:prompt"), host(tmp_path, seed)) as source:
            return await source.fingerprint()

    plain = await fingerprint("a.py", "def prompt(i, s):\n    return f'{i}'\n")
    assert await fingerprint("b.py", "# a comment\ndef prompt(index, seed):\n    return str(index)\n") == plain
    assert await fingerprint("c.py", "def prompt(i, s):\n    return f'{i}!'\n") != plain
    assert await fingerprint("d.py", "def prompt(i, s):\n    return f'{i}'\n", seed=1) != plain


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("def other(): pass", "prompt"),
        ("prompt = 3", "it is int, not a function"),
        ("import no_such_module_at_all", "no_such_module_at_all"),
        ("def prompt(:", "SyntaxError"),
        ("raise SystemExit(1)", "SystemExit"),
    ],
)
async def test_a_function_that_cannot_be_had_is_the_users_error(tmp_path: Path, code: str, why: str) -> None:
    cfg = write(tmp_path, code)
    (problem,) = function.check(cfg, host(tmp_path).site)
    assert problem.field == "prompts.function"
    assert why in problem.why
    with pytest.raises(UserError, match=exactly(f"prompts.function = 'tasks.py:prompt': {problem.why}")):
        async with function.open(cfg, host(tmp_path)):
            pass


def test_epochs_of_unknown_length_are_a_problem(tmp_path: Path) -> None:
    write(tmp_path, "def prompt(index, seed): return 'a'")
    (problem,) = function.check(function.Config(function="tasks.py:prompt", epochs=2), host(tmp_path).site)
    assert problem.field == "prompts.epochs"
    both = function.check(function.Config(function="nowhere.py:prompt", epochs=2), host(tmp_path).site)
    assert [problem.field for problem in both] == ["prompts.function", "prompts.epochs"]
