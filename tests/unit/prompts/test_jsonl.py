"""Prompts from a file of JSON lines."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from backends.prompts import jsonl
from backends.sim.payloads import ScriptedPayloads
from protocols.adapters import Host
from protocols.errors import BadPrompt, UserError
from protocols.prompts import ChatMessage, ChatPrompt, Prompt, TextPrompt, TokenPrompt
from protocols.sections import Site
from tests.support.texts import exactly


def site(folder: Path, seed: int = 0) -> Site:
    return Site(job_dir=str(folder), seed=seed)


def host(folder: Path, seed: int = 0) -> Host:
    return Host(site=site(folder, seed), payloads=ScriptedPayloads())


def write(folder: Path, *lines: object, name: str = "data.jsonl") -> str:
    """Write one line each; text is written as it stands."""
    shown = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    (folder / name).write_text("".join(f"{line}\n" for line in shown), encoding="utf-8")
    return name


async def draw_all(folder: Path, cfg: jsonl.Config, seed: int = 0) -> list[Prompt]:
    async with jsonl.open(cfg, host(folder, seed)) as source:
        drawn: list[Prompt] = []
        while (prompt := await source.draw()) is not None:
            drawn.append(prompt)
        return drawn


def problems(folder: Path, cfg: jsonl.Config) -> Sequence[str]:
    found = jsonl.check(cfg, site(folder))
    assert all(problem.field == "prompts.path" and problem.mend for problem in found)
    return [problem.why for problem in found]


async def test_text_chat_and_token_ids_are_prompts_and_the_rest_is_fields(tmp_path: Path) -> None:
    name = write(
        tmp_path,
        {"prompt": "2+2=", "answer": 4, "level": {"name": "easy"}},
        {"prompt": [{"role": "user", "content": "héllo"}], "answer": None},
        "",
        {"prompt": [5, 6, 7]},
    )
    cfg = jsonl.Config(path=name, epochs=1)
    assert problems(tmp_path, cfg) == []
    text, chat, tokens = await draw_all(tmp_path, cfg)
    assert (text.content, text.fields) == (TextPrompt(text="2+2="), {"answer": 4, "level": {"name": "easy"}})
    assert chat.content == ChatPrompt(messages=(ChatMessage(role="user", content="héllo"),))
    assert chat.fields == {"answer": None}
    assert tokens.content == TokenPrompt(token_ids=(5, 6, 7))
    assert tokens.position == 2, "a blank line is no prompt"


async def test_another_field_may_be_the_prompt(tmp_path: Path) -> None:
    cfg = jsonl.Config(
        path=write(tmp_path, {"question": "why?", "prompt": "ignored"}), epochs=1, prompt_field="question"
    )
    (prompt,) = await draw_all(tmp_path, cfg)
    assert (prompt.content, prompt.fields) == (TextPrompt(text="why?"), {"prompt": "ignored"})


async def test_the_file_is_drawn_in_its_order_again_and_again(tmp_path: Path) -> None:
    cfg = jsonl.Config(path=write(tmp_path, *({"prompt": f"p{index}"} for index in range(3))), epochs=2)
    assert [prompt.content for prompt in await draw_all(tmp_path, cfg)] == [
        TextPrompt(text=f"p{i % 3}") for i in range(6)
    ]


async def test_shuffling_orders_each_epoch_anew_by_the_seed(tmp_path: Path) -> None:
    """I52: the sampler's state was lost at the epoch's end, and every epoch had the same order."""
    cfg = jsonl.Config(path=write(tmp_path, *({"prompt": f"p{index}"} for index in range(20))), epochs=3, shuffle=True)
    drawn = [prompt.content for prompt in await draw_all(tmp_path, cfg, seed=1)]
    epochs = [drawn[start : start + 20] for start in (0, 20, 40)]
    assert len({tuple(str(content) for content in epoch) for epoch in epochs}) == 3
    assert all(sorted(map(str, epoch)) == sorted(map(str, epochs[0])) for epoch in epochs)
    assert drawn != [prompt.content for prompt in await draw_all(tmp_path, cfg, seed=2)]


async def test_the_fingerprint_covers_the_data_and_what_orders_it(tmp_path: Path) -> None:
    lines = [{"prompt": "a", "q": "b"}, {"prompt": "c", "q": "d"}]
    name, other = write(tmp_path, *lines), write(tmp_path, *reversed(lines), name="other.jsonl")

    async def fingerprint(seed: int = 0, path: str = name, **options: object) -> str:
        async with jsonl.open(jsonl.Config(path=path, **options), host(tmp_path, seed)) as source:
            return await source.fingerprint()

    assert await fingerprint() == await fingerprint(seed=1), "without shuffling the seed orders nothing"
    assert await fingerprint() == await fingerprint(epochs=2), "a run may be made longer"
    different = [
        await fingerprint(),
        await fingerprint(path=other),
        await fingerprint(prompt_field="q"),
        await fingerprint(shuffle=True),
        await fingerprint(shuffle=True, seed=1),
    ]
    assert len(set(different)) == len(different)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"prompt": ', "no JSON object"),
        ("[1, 2]", "no JSON object"),
        ("\x00", "no JSON object"),
        ({"question": "why?"}, "no field 'prompt' (it has: question)"),
        ({}, "it has: nothing"),
        ({"prompt": None}, "not NoneType"),
        ({"prompt": 7}, "not int"),
        ({"prompt": ""}, "not an empty one"),
        ({"prompt": []}, "not an empty one"),
        ({"prompt": [1, "a"]}, "$[1]"),
        ({"prompt": [1, 2.5]}, "$[1]"),
        ({"prompt": [True]}, "Expected `int`"),
        ({"prompt": [{"role": "user"}]}, "content"),
        ({"prompt": [{"role": "user", "content": "a", "tool": "b"}]}, "tool"),
        ('{"prompt": "a", "big": 123456789012345678901234567890}', "no JSON value"),
        ('{"prompt": "a", "deep": ' + "[" * 5000 + "]" * 5000 + "}", "recursion"),
    ],
)
async def test_a_bad_line_is_a_problem_and_a_fault(tmp_path: Path, line: object, why: str) -> None:
    cfg = jsonl.Config(path=write(tmp_path, {"prompt": "good"}, line), epochs=1)
    (problem,) = problems(tmp_path, cfg)
    assert "line 2" in problem
    assert why in problem
    async with jsonl.open(cfg, host(tmp_path)) as source:
        await source.draw()
        with pytest.raises(BadPrompt, match="line 2"):
            await source.draw()
        assert await source.draw() is None


def test_only_the_first_bad_lines_are_listed(tmp_path: Path) -> None:
    cfg = jsonl.Config(path=write(tmp_path, *["bad"] * 50, {"prompt": "good"}))
    found = problems(tmp_path, cfg)
    assert [why.partition(":")[0] for why in found] == ["line 1", "line 2", "line 3", "47 more lines are bad"]


@pytest.mark.parametrize("name", ["nowhere.jsonl", "."])
async def test_a_file_that_cannot_be_read_is_the_users_error(tmp_path: Path, name: str) -> None:
    cfg = jsonl.Config(path=name)
    (problem,) = problems(tmp_path, cfg)
    assert "cannot be read" in problem
    text = f"prompts.path = '{name}': [Errno ...] ...; give the path of a file of JSON lines"
    with pytest.raises(UserError, match=exactly(text)):
        async with jsonl.open(cfg, host(tmp_path)):
            pass


async def test_an_empty_file_is_the_users_error(tmp_path: Path) -> None:
    cfg = jsonl.Config(path=write(tmp_path, "", "   "))
    assert problems(tmp_path, cfg) == ["the file has no lines"]
    text = "prompts.path = 'data.jsonl': the file has no lines; write one JSON object a line"
    with pytest.raises(UserError, match=exactly(text)):
        async with jsonl.open(cfg, host(tmp_path)):
            pass
