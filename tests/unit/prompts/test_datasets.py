"""Prompts from Hugging Face datasets, from local data alone."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from backends.prompts import datasets as adapter
from backends.sim.payloads import ScriptedPayloads
from protocols.adapters import Host
from protocols.errors import BadPrompt, Problem, UserError
from protocols.prompts import ChatMessage, ChatPrompt, Prompt, TextPrompt, TokenPrompt
from protocols.sections import Site
from tests.support.texts import exactly

datasets = pytest.importorskip("datasets", reason="pip install 'conductor-rl[datasets]'")

ROWS = [{"prompt": f"p{index}", "answer": index} for index in range(6)]


@pytest.fixture(autouse=True)
def _cached_here(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep converted files out of the user's cache."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))


def site(folder: Path, seed: int = 0) -> Site:
    return Site(job_dir=str(folder), seed=seed)


async def draw_all(folder: Path, cfg: adapter.Config, seed: int = 0) -> list[Prompt]:
    async with adapter.open(cfg, Host(site=site(folder, seed), payloads=ScriptedPayloads())) as source:
        drawn: list[Prompt] = []
        while (prompt := await source.draw()) is not None:
            drawn.append(prompt)
        return drawn


async def fingerprint(folder: Path, cfg: adapter.Config, seed: int = 0) -> str:
    async with adapter.open(cfg, Host(site=site(folder, seed), payloads=ScriptedPayloads())) as source:
        return await source.fingerprint()


def problems(folder: Path, cfg: adapter.Config) -> Sequence[Problem]:
    return adapter.check(cfg, site(folder))


def save(folder: Path, kind: str, rows: Sequence[dict[str, object]] = ROWS) -> str:
    """Write the rows in one of the forms that are read; return the path for the job."""
    table = datasets.Dataset.from_list(list(rows))
    where = folder / f"data.{kind}"
    match kind:
        case "jsonl" | "json":
            where.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        case "csv":
            where.write_text(
                "".join([",".join(rows[0]) + "\n", *(f"{row['prompt']},{row['answer']}\n" for row in rows)])
            )
        case "tsv":
            where.write_text("".join(["prompt\tanswer\n", *(f"{row['prompt']}\t{row['answer']}\n" for row in rows)]))
        case "parquet":
            table.to_parquet(str(where))
        case "saved":
            table.save_to_disk(str(where))
        case "splits":
            datasets.DatasetDict({"train": table, "test": table.select([0])}).save_to_disk(str(where))
        case _:
            where.mkdir()
            table.to_parquet(str(where / "train.parquet"))
    return where.name


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "tsv", "parquet", "saved", "splits", "folder"])
async def test_every_form_gives_the_same_prompts(tmp_path: Path, kind: str) -> None:
    cfg = adapter.Config(path=save(tmp_path, kind), epochs=1)
    assert not problems(tmp_path, cfg)
    drawn = await draw_all(tmp_path, cfg)
    assert [prompt.content for prompt in drawn] == [TextPrompt(text=f"p{index}") for index in range(6)]
    assert [prompt.fields for prompt in drawn] == [{"answer": index} for index in range(6)]


async def test_chat_and_token_ids_are_prompts_too(tmp_path: Path) -> None:
    chat = save(tmp_path, "jsonl", [{"chat": [{"role": "user", "content": "hi"}], "ids": [5, 6]}])
    (turns,) = await draw_all(tmp_path, adapter.Config(path=chat, epochs=1, prompt_field="chat"))
    assert turns.content == ChatPrompt(messages=(ChatMessage(role="user", content="hi"),))
    assert turns.fields == {"ids": [5, 6]}
    (ids,) = await draw_all(tmp_path, adapter.Config(path=chat, epochs=1, prompt_field="ids"))
    assert ids.content == TokenPrompt(token_ids=(5, 6))


async def test_a_split_may_be_named_and_cut(tmp_path: Path) -> None:
    splits, lines = save(tmp_path, "splits"), save(tmp_path, "jsonl")
    assert len(await draw_all(tmp_path, adapter.Config(path=splits, split="test", epochs=1))) == 1
    assert len(await draw_all(tmp_path, adapter.Config(path=lines, split="train[2:4]", epochs=1))) == 2


async def test_shuffling_orders_each_epoch_anew_by_the_seed(tmp_path: Path) -> None:
    """I52: the sampler's state was lost at the epoch's end, and every epoch had the same order."""
    rows = [{"prompt": f"p{index}"} for index in range(20)]
    cfg = adapter.Config(path=save(tmp_path, "jsonl", rows), epochs=2, shuffle=True)
    drawn = [str(prompt.content) for prompt in await draw_all(tmp_path, cfg, seed=1)]
    assert drawn[:20] != drawn[20:]
    assert sorted(drawn[:20]) == sorted(drawn[20:])
    assert drawn != [str(prompt.content) for prompt in await draw_all(tmp_path, cfg, seed=2)]


async def test_the_fingerprint_covers_the_rows_and_not_where_they_lie(tmp_path: Path) -> None:
    """A file that was only copied or touched is the same data; datasets' own fingerprint changes with its date."""
    cfg = adapter.Config(path=save(tmp_path, "jsonl"))
    first = await fingerprint(tmp_path, cfg)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert await fingerprint(elsewhere, adapter.Config(path=save(elsewhere, "jsonl"))) == first
    assert await fingerprint(tmp_path, cfg, seed=1) == first
    changed = [*ROWS[:5], {"prompt": "p5", "answer": 7}]
    others = [
        await fingerprint(elsewhere, adapter.Config(path=save(elsewhere, "jsonl", changed))),
        await fingerprint(tmp_path, adapter.Config(path=cfg.path, split="train[:5]")),
        await fingerprint(tmp_path, adapter.Config(path=cfg.path, shuffle=True)),
    ]
    assert len({first, *others}) == 4


@pytest.mark.parametrize(
    ("options", "field", "why"),
    [
        ({"path": "nowhere.jsonl"}, "prompts.path", "there is no"),
        ({"path": "./nowhere"}, "prompts.path", "there is no"),
        ({"path": "data.txt"}, "prompts.path", "not in '.txt'"),
        ({"path": "broken.jsonl"}, "prompts.path", "cannot be loaded"),
        ({"path": "data.jsonl", "split": "test"}, "prompts.path", "test"),
        ({"path": "empty"}, "prompts.path", "cannot be loaded"),
        ({"path": "data.jsonl", "prompt_field": "promt"}, "prompts.prompt_field", "no such column"),
        ({"path": "data.jsonl", "prompt_field": "answer"}, "prompts.path", "not int"),
    ],
)
def test_mistakes_with_local_data_are_found_before_the_run(
    tmp_path: Path, options: dict[str, str], field: str, why: str
) -> None:
    save(tmp_path, "jsonl")
    datasets.Dataset.from_dict({"prompt": []}).save_to_disk(str(tmp_path / "empty"))
    (tmp_path / "data.txt").write_text("p0\n")
    (tmp_path / "broken.jsonl").write_text("{\n")
    (problem,) = problems(tmp_path, adapter.Config(**options))
    assert problem.field == field
    assert why in problem.why
    assert problem.mend


def test_a_name_is_not_downloaded_to_be_checked(tmp_path: Path) -> None:
    assert not problems(tmp_path, adapter.Config(path="org/data"))


async def test_data_that_cannot_be_had_is_the_users_error(tmp_path: Path) -> None:
    (tmp_path / "data.txt").touch()
    with pytest.raises(
        UserError, match=exactly("prompts.path = 'data.txt': split 'train' cannot be loaded: ValueError: ...")
    ):
        await draw_all(tmp_path, adapter.Config(path="data.txt"))


async def test_a_bad_row_is_a_fault_of_its_own(tmp_path: Path) -> None:
    """W17: one bad record harms itself only."""
    cfg = adapter.Config(path=save(tmp_path, "jsonl", [ROWS[0], {"prompt": "", "answer": 1}, ROWS[2]]), epochs=1)
    async with adapter.open(cfg, Host(site=site(tmp_path), payloads=ScriptedPayloads())) as source:
        await source.draw()
        with pytest.raises(BadPrompt, match=r"data\.jsonl, row 1"):
            await source.draw()
        last = await source.draw()
        assert last is not None
        assert last.position == 2
        assert await source.draw() is None
