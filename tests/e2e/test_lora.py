"""A whole run that trains adapters alone."""

from pathlib import Path

import pytest
from safetensors.torch import load_file
from transformers import AutoTokenizer

from conductor import Conductor, load_config
from tests.support.lora import needs_peft

HERE = Path(__file__).parent
JOB = HERE.parents[1] / "examples" / "reverse" / "job.toml"
CONFIG = (
    "{hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, "
    "max_position_embeddings=32}"
)
SMALL = [
    "steps=4",
    "batch_groups=4",
    "group_size=4",
    "sampling.max_tokens=2",
    "filter.equal_rewards=keep",
    "model.architecture=llama",
    f"model.config={CONFIG}",
    'model.lora={rank=4, alpha=8, targets=["q_proj", "v_proj", "down_proj"]}',
    f"prompts.function={HERE / 'two_digits.py'}:prompt",
    f"reward.function={HERE / 'two_digits.py'}:reward",
    "reward.cheap=true",
    "train.lr=1e-1",
    "engine.threads=1",
    "train.threads=1",
]


def names_in(folder: str) -> set[str]:
    return {path.name for path in Path(folder).iterdir()}


@needs_peft
@pytest.mark.real_time
@pytest.mark.timeout(120)
@pytest.mark.parametrize("max_age", [0, 1])
async def test_adapters_are_trained_published_and_saved(tmp_path: Path, max_age: int) -> None:
    """Rewards of later steps come from published adapters: the engine's probabilities are the trainer's at each."""
    job = load_config(JOB, overrides=[*SMALL, f"max_age={max_age}"], run_dir=str(tmp_path / "run"))
    result = await Conductor.run(job)
    assert result.steps == 4
    assert result.failures == {}
    assert result.accounts.balanced
    assert all(record.metrics["grad_norm"] > 0 for record in result.metrics)
    fresh = [record.metrics for record in result.metrics if record.metrics["age/max"] == 0]
    stale = [record.metrics for record in result.metrics if record.metrics["age/max"] > 0]
    assert all(metrics["ratio/mean"] == pytest.approx(1, abs=1e-4) for metrics in fresh)
    assert all(metrics["kl/behaviour"] < 1e-6 for metrics in fresh)
    assert all(metrics["kl/behaviour"] > 1e-6 for metrics in stale), "a version later the policy is another one"
    assert bool(stale) == (max_age > 0)
    assert result.checkpoint is not None
    names = names_in(result.checkpoint)
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json", "random.safetensors"} <= names
    assert "model.safetensors" not in names
    weights = load_file(Path(result.checkpoint, "adapter_model.safetensors"))
    second = [held for name, held in weights.items() if "lora_B" in name]
    assert len(second) == 6
    assert all(held.any() for held in second)
    tokenizer = AutoTokenizer.from_pretrained(result.checkpoint)
    assert tokenizer.encode("12>") == [1, 2, 10]


@needs_peft
@pytest.mark.slow
@pytest.mark.real_time
@pytest.mark.timeout(120)
async def test_adapters_alone_learn(tmp_path: Path) -> None:
    """Guessing earns 0.1. The frozen rest is random, so that nothing but adapters can have learned."""
    learning = [
        "steps=60",
        "batch_groups=16",
        "group_size=16",
        "model.architecture=gpt2",
        "model.config={n_embd=64, n_layer=1, n_head=4, n_positions=32, initializer_range=0.3}",
        "model.lora={rank=16, alpha=32}",
        "train.lr=5e-3",
    ]
    job = load_config(JOB, overrides=[*SMALL, *learning], run_dir=str(tmp_path / "run"))
    result = await Conductor.run(job)
    assert result.reward_first is not None
    assert result.reward_last is not None
    assert result.reward_first < 0.2
    assert result.reward_last >= 0.4
