"""The example that users run first, with the real engine and the real trainer."""

from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from conductor import Conductor, RunResult, load_config

JOB = Path(__file__).parents[2] / "examples" / "reverse" / "job.toml"
SHORT = [
    "steps=4",
    "batch_groups=4",
    "group_size=4",
    "engine.threads=1",
    "train.threads=1",
    "engine.deterministic=true",
]

pytestmark = [pytest.mark.real_time, pytest.mark.slow]


async def run(run_dir: Path, *overrides: str) -> RunResult:
    return await Conductor.run(load_config(JOB, overrides=overrides, run_dir=str(run_dir)))


@pytest.mark.timeout(300)
async def test_the_demo_learns(tmp_path: Path) -> None:
    """Issue A: mean reward of the last 10 steps >= 0.95, from random weights, by GRPO alone."""
    result = await run(tmp_path / "run")
    assert result.reward_first is not None
    assert result.reward_last is not None
    assert result.reward_first < 0.2
    assert result.reward_last >= 0.95
    assert result.accounts.balanced
    assert result.accounts.open == 0
    assert result.failures == {}


@pytest.mark.timeout(120)
async def test_nothing_but_messages_crosses_the_ports(tmp_path: Path) -> None:
    """The same job behind a proxy that encodes and decodes every message gives the same rewards and losses."""
    plain = await run(tmp_path / "plain", *SHORT)
    encoded = await run(tmp_path / "encoded", *SHORT, "backend.encode_messages=true")
    for name in ("reward/mean", "loss", "grad_norm"):
        first = [record.metrics[name] for record in plain.metrics]
        second = [record.metrics[name] for record in encoded.metrics]
        assert first == second, name
    assert plain.accounts == encoded.accounts


@pytest.mark.timeout(120)
@pytest.mark.parametrize("max_age", [0, 2])
async def test_a_run_leaves_a_model_that_transformers_loads(tmp_path: Path, max_age: int) -> None:
    """The checkpoint is a folder of the field's own format, whole or not there."""
    result = await run(tmp_path / "run", *SHORT, f"max_age={max_age}")
    assert result.steps == 4
    assert result.checkpoint is not None
    assert Path(result.checkpoint).name == "step-4"
    model = AutoModelForCausalLM.from_pretrained(result.checkpoint)
    assert model.config.n_embd == 64
    assert {path.name for path in Path(result.checkpoint).parent.iterdir()} == {"step-4"}
    assert max(record.metrics["age/max"] for record in result.metrics) <= max_age


@pytest.mark.timeout(120)
async def test_the_same_seed_gives_the_same_run(tmp_path: Path) -> None:
    """Law 4 in the small: at max_age 0 nothing but the seed decides what is trained."""
    first, second = [await run(tmp_path / name, *SHORT) for name in ("a", "b")]
    assert [r.metrics["reward/mean"] for r in first.metrics] == [r.metrics["reward/mean"] for r in second.metrics]
    assert [r.metrics["loss"] for r in first.metrics] == [r.metrics["loss"] for r in second.metrics]
