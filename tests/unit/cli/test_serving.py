"""``conductor engine``: what is wrong is said before anything is served."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from conductor.cli.main import main

REVERSE = str(Path(__file__).parents[3] / "examples" / "reverse" / "job.toml")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([REVERSE, "--faults", "crash@Engine.generate#x"], "is no fault"),
        ([REVERSE, "--faults", "wrong_version@Engine.status#1"], "a server has crash, hang, slow"),
        ([REVERSE, "--faults", "crash@Engine.generate@3"], "by number"),
        (["/nowhere/model"], "the model cannot be loaded|tokenizer cannot be loaded"),
    ],
)
@pytest.mark.real_time
def test_what_cannot_be_served_is_refused(monkeypatch: pytest.MonkeyPatch, words: list[str], said: str) -> None:
    pytest.importorskip("h11")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    result = CliRunner().invoke(main, ["engine", *words, "--protocol", "vllm"])
    assert result.exit_code == 2
    assert any(part in result.output for part in said.split("|"))


def test_a_job_without_a_model_is_refused(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text('steps = 1\n[prompts]\nkind = "function"\nfunction = "task.py:prompt"\n')
    result = CliRunner().invoke(main, ["engine", str(job), "--protocol", "vllm"])
    assert result.exit_code == 2
    assert "[model]" in result.output
