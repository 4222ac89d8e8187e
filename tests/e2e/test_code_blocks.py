"""Every code block of the documentation runs as it stands; what is output, or needs another machine, is ``text``.

The jobs that the blocks name are there, cut to two steps, and one finished run that they look at.
"""

import ast
import inspect
import re
import shlex
import shutil
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

import anyio
import msgspec
import pytest
from click.testing import CliRunner
from markdown_it import MarkdownIt
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from conductor.cli.main import main
from conductor.loading import load_config

ROOT = Path(__file__).parents[2]
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/*.md")),
    *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("examples/*/README.md")),
]
RUN = "runs/reverse-20260101-120000"
LIVE = {"scale", "checkpoint", "stop"}
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
EXTRAS: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "optional-dependencies"
]

pytestmark = pytest.mark.real_time  # commands and blocks start loops of their own


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks() -> Iterator[Block]:
    for page in PAGES:
        for token in MarkdownIt("commonmark").parse((ROOT / page).read_text(encoding="utf-8")):
            if token.type in {"fence", "code_block"}:
                assert token.map is not None
                yield Block(page, token.map[0] + 1, token.info, token.content)


def save_small_llama(folder: Path) -> None:
    """Stand in for the model that the pages name, with layers of the same names."""
    end = "</s>"
    words = Tokenizer(WordLevel({end: 0, "a": 1}, unk_token=end))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token=end).save_pretrained(folder)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=2, **sizes)).save_pretrained(folder)


def written_in(language: str) -> list[object]:
    return [pytest.param(block, id=str(block)) for block in blocks() if block.language == language]


def cut(job: Path) -> None:
    """Leave two small steps of a job."""
    text = job.read_text(encoding="utf-8")
    for field, number in (("steps", 2), ("batch_groups", 4), ("group_size", 4)):
        text, found = re.subn(rf"(?m)^{field} = \d+", f"{field} = {number}", text)
        assert found == 1, f"{job}: {field}"
    job.write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a reader has it who followed the pages up to here."""
    folder = tmp_path_factory.mktemp("reader")
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    for example in ("reverse", "fleet"):
        cut(folder / "examples" / example / "job.toml")
    for name in ("job.toml", "task.py"):
        shutil.copy(folder / "examples" / "reverse" / name, folder)
    shutil.copy(ROOT / "examples" / "roles" / "judges.py", folder)
    shutil.copy(ROOT / "examples" / "fleet" / "looking_after.py", folder)
    write_what_is_yours(folder)
    done = CliRunner().invoke(main, ["run", str(folder / "job.toml"), "--run-dir", str(folder / RUN), "--quiet"])
    assert done.exit_code == 0, done.output
    return folder


def write_what_is_yours(folder: Path) -> None:
    """The files that the pages leave to the reader."""
    (folder / "reward.py").write_text("def reward(completion, answer): return float(completion == answer)")
    (folder / "judge.py").write_text(
        """
from contextlib import asynccontextmanager
from msgspec import Struct

class Judge:
    class Config(Struct):
        size: int
    check = staticmethod(lambda cfg, site: ())
    open = staticmethod(asynccontextmanager(lambda cfg, host: iter(())))
"""
    )
    (folder / "serve").write_text("#!/bin/sh")
    (folder / "serve").chmod(0o700)
    (folder / "data").mkdir()
    rows = pytest.importorskip("pyarrow").table({"question": ["1 + 1?"], "answer": ["2"]})
    pytest.importorskip("pyarrow.parquet").write_table(rows, folder / "data" / "train.parquet")
    save_small_llama(folder / "HuggingFaceTB" / "SmolLM2-135M-Instruct")


@pytest.fixture
def reader(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(prepared, tmp_path / "reader")
    monkeypatch.chdir(tmp_path / "reader")
    monkeypatch.syspath_prepend(tmp_path / "reader")
    return tmp_path / "reader"


def test_every_block_says_what_it_is() -> None:
    assert {block.language for block in blocks()} <= {"toml", "python", "sh", "text"}


@pytest.mark.parametrize("block", written_in("toml"))
def test_a_piece_of_a_job_is_accepted(block: Block, reader: Path) -> None:
    """Laid over the example, for a piece is no job by itself."""
    job, shown = tomllib.loads((reader / "job.toml").read_text(encoding="utf-8")), tomllib.loads(block.text)
    load_config(laid_over(job, shown, reader))


@pytest.mark.slow
@pytest.mark.parametrize("block", written_in("python"))
def test_python_runs(block: Block, reader: Path) -> None:
    code: CodeType = compile(block.text, str(block), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    names = {"__name__": "block"}

    async def awaited() -> None:
        await eval(code, names)  # noqa: S307 - our own pages

    if code.co_flags & inspect.CO_COROUTINE:
        anyio.run(awaited)
    else:
        exec(code, names)  # noqa: S102 - as above


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted({block.page for block in blocks() if block.language == "sh"}))
def test_commands_run(page: str, reader: Path) -> None:
    """In the order of the page, in one folder."""
    for block in blocks():
        if (block.page, block.language) == (page, "sh"):
            follow(block.text.replace("\\\n", " "), reader)


def follow(text: str, folder: Path) -> None:
    """Do what the lines of a shell say."""
    for line in text.splitlines():
        words = shlex.split(line, comments=True)
        if words == ["conductor", "init"]:  # it is for an empty folder
            (folder / "job.toml").unlink()
            (folder / "task.py").unlink()
        if words:
            run(words, "".join(re.findall(r"# exits with (\d)", line)), folder)


def laid_over(job: dict[str, Any], shown: dict[str, Any], folder: Path) -> Path:
    """Write the job that a piece is a piece of; a section that names its kind replaces the job's."""
    for name, value in shown.items():
        told = isinstance(value, dict) and "kind" not in value
        job[name] = {**job.get(name, {}), **value} if told else value
    path = folder / "laid_over.json"
    path.write_bytes(msgspec.json.encode(job))
    return path


def run(words: list[str], said: str, folder: Path) -> None:
    """Do what one line of a shell says, or as much of it as takes no minutes and no network."""
    program, *arguments = words
    match program:
        case "conductor":
            conduct(arguments, int(said) if said else 0, folder)
        case "make":
            assert all(re.search(rf"(?m)^{name}:", MAKEFILE) for name in arguments), words
        case "pip":
            asked = {
                extra for word in arguments for found in re.findall(r"\[(.*)\]", word) for extra in found.split(",")
            }
            assert asked <= EXTRAS.keys(), words
        case "$EDITOR":
            assert Path(arguments[0]).is_file()
        case "python":  # by tests of their own: test_examples, test_bandit, test_fleet, test_smollm2
            assert any(Path(ROOT, word).is_file() for word in arguments), words
        case _:
            pytest.fail(f"nothing here knows {program}")


def conduct(arguments: list[str], code: int, folder: Path) -> None:
    """Run a command; one that serves, or needs processes, a cluster or a model, is only read."""
    command, *rest = arguments
    if command in LIVE:  # the run that is there has finished
        code = 2
    if command == "engine" or {"examples/fleet/job.toml", "examples/smollm2/job.toml", "ray"}.intersection(rest):
        main.commands[command].make_context(command, list(rest))
        if command != "plan":
            return
    if command == "simulate":
        arguments += ["--seeds", "2"] if "--seeds" in rest else ["--steps", "8"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == code, f"{arguments}\n{done.output}"
    if command == "init":
        cut(folder / (*rest, ".")[0] / "job.toml")
