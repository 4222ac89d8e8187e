"""The examples that are programs: each is run as its README says, only shorter."""

import ast
import importlib.util
import inspect
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SMALL = ["steps=2", "batch_groups=4", "group_size=4"]

pytestmark = [pytest.mark.real_time, pytest.mark.slow]


def example(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("example", EXAMPLES / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_a_reward_in_one_file_is_learned() -> None:
    result = await example("one_file/train.py").train(steps=30)
    assert result.reward_last > result.reward_first + 0.1
    assert result.metrics[-1].metrics["reward/parts/digit"] > 0.9
    assert result.run_dir is None


def program(path: str, *arguments: str, seconds: float) -> str:
    """Run an example as its README says; returns what it printed."""
    command = [sys.executable, str(EXAMPLES / path), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds, check=False)  # noqa: S603 - our own script
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_killed_run_goes_on_and_its_books_balance(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    printed = program("resume/kill.py", str(run_dir), seconds=170)
    assert "killed; its record and its checkpoints are there: " in printed
    steps = [json.loads(line)["step"] for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, 9))


@pytest.mark.timeout(500)
def test_a_fleet_learns_while_an_engine_and_a_rank_of_it_are_killed(tmp_path: Path) -> None:
    """Issue E: it was written, and asked the run in a way that the run had ceased to be asked; nothing ran it."""
    drilled = json.loads(program("fleet/drill.py", str(tmp_path / "run"), seconds=480).splitlines()[-1])
    assert drilled["right"], drilled
    assert drilled["reward_first"] < 0.2
    assert drilled["reward_last"] > 0.9
    assert drilled["replaced"] == [one["workers"][0] for one in drilled["incidents"]] == ["rollout/1", "policy/0"]
    assert (drilled["steps"], drilled["balanced"], drilled["left"]) == (120, True, [])


async def test_a_sweep_has_a_row_for_each_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sweep = example("sweep/policies.py")
    results = await sweep.sweep(*SMALL)
    assert {result.steps for result in results.values()} == {2}
    assert results["on-policy"].metrics[-1].metrics["age/max"] == 0
    shown = sweep.table(results)
    assert list(shown.columns[0].cells) == list(sweep.POLICIES)


async def test_the_notebook_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cell by cell, as a kernel does; the cell tagged ``parameters`` says less here."""
    names: dict[str, Any] = {}
    for folder in ("notebook", "reverse"):
        shutil.copytree(EXAMPLES / folder, tmp_path / folder)
    monkeypatch.chdir(tmp_path / "notebook")
    for cell in cells(EXAMPLES / "notebook" / "first_run.ipynb"):
        code: CodeType = compile(cell, "first_run.ipynb", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        done = eval(code, names)  # noqa: S307 - our own notebook
        if code.co_flags & inspect.CO_COROUTINE:
            await done
    assert names["result"].steps == 2
    printed = capsys.readouterr().out
    assert "step   1  reward 0." in printed
    assert "is trained" in printed


def cells(notebook: Path) -> Iterator[str]:
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        assert cell.get("outputs", []) == [], "a notebook is committed without what it printed"
        if "parameters" in cell["metadata"].get("tags", ()):
            yield "steps = 2"
        elif cell["cell_type"] == "code":
            yield "".join(cell["source"])
