"""A pretrained model, real tasks and their verifier, in three small steps. Nothing is downloaded."""

import importlib
import sys
from pathlib import Path

import pytest

from conductor import Conductor, load_config

EXAMPLE = Path(__file__).parents[2] / "examples" / "smollm2"
SMALL = ["steps=3", "batch_groups=1", "group_size=4", "prompts.size=20", "filter.equal_rewards=keep"]

pytestmark = [pytest.mark.real_time, pytest.mark.slow]


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the prepared model."""
    pytest.importorskip("reasoning_gym", reason="pip install 'conductor-rl[reasoning]'")
    monkeypatch.syspath_prepend(EXAMPLE)
    folder: Path = importlib.import_module("prepare").cache_folder()
    sys.modules.pop("prepare")
    if not folder.exists():
        pytest.skip(f"there is no {folder}: make smollm2 prepares it")
    return folder


def names_in(folder: str) -> set[str]:
    return {path.name for path in Path(folder).iterdir()}


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
