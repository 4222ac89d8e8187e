"""``conductor engine``: what is wrong is said before anything is served."""

import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from conductor.cli.main import main
from tests.unit.cli.test_commands import JOB

REVERSE = str(Path(__file__).parents[3] / "examples" / "reverse" / "job.toml")


ONE = "the job has 1 problem:\n  "
FAULTS = "crash, hang, slow, lost_request, lost_reply"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            [REVERSE, "--faults", "crash@Engine.generate#x"],
            (
                "--faults: 'crash@Engine.generate#x' is no fault: KIND@Port.method[:WORKER]#CALL[+SECONDS]; "
                "see docs/engines.md"
            ),
        ),
        (
            [REVERSE, "--faults", "wrong_version@Engine.status#1"],
            f"wrong_version@Engine.status#1+10: a server has {FAULTS} at the calls of Engine methods, by number",
        ),
        (
            ["/nowhere/model"],
            (
                f"{ONE}model.path = '/nowhere/model': there is no folder /nowhere/model; "
                "name a folder with config.json, weights and tokenizer"
            ),
        ),
        (
            ["three/part/name"],
            (
                f"{ONE}model.path = 'three/part/name': there is no folder {Path.cwd()}/three/part/name; "
                "name a folder with config.json, weights and tokenizer"
            ),
        ),
        (
            [REVERSE, "--host", "192.0.2.1", "--port", "1"],
            "cannot listen on 192.0.2.1:1: Cannot assign requested address; give another --host or --port",
        ),
    ],
)
@pytest.mark.real_time
def test_what_cannot_be_served_is_refused(words: list[str], text: str) -> None:
    pytest.importorskip("h11")
    result = CliRunner().invoke(main, ["engine", *words, "--protocol", "vllm"])
    assert (result.exit_code, result.output) == (2, f"{text}\n")


@pytest.mark.real_time
def test_a_name_that_the_hub_cannot_be_asked_about_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own client tries five times a file, for a minute in all, before it says that there is no network."""
    pytest.importorskip("h11")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")  # the port for what is to be discarded
    hub = pytest.importorskip("huggingface_hub")
    hub.close_session()  # which has read its environment before
    began = time.monotonic()
    result = CliRunner().invoke(main, ["engine", "nowhere/model", "--protocol", "vllm"])
    hub.close_session()
    assert time.monotonic() - began < 30
    assert result.exit_code == 2
    said = "model.path = 'nowhere/model': it is no folder, and Hugging Face cannot be asked: "
    assert result.output.startswith(f"{ONE}{said}")
    assert result.output.endswith("; name a folder, or download the model first\n")


TORCH = 'steps = 1\n[prompts]\nkind = "function"\nfunction = "task.py:prompt"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TORCH, f"{ONE}model: is missing; add a section [model] with a kind: pretrained, scratch, or module:name"),
        (JOB, "PATH has no section [model]; add one, or name a folder or a Hugging Face name"),
    ],
)
def test_a_job_without_a_model_is_refused(text: str, said: str, tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text(text, encoding="utf-8")
    result = CliRunner().invoke(main, ["engine", str(job), "--protocol", "vllm"])
    assert (result.exit_code, result.output) == (2, f"{said.replace('PATH', str(job))}\n")
