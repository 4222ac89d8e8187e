"""Every algorithm and every loss on a small form of the example: each of them learns."""

from pathlib import Path

import pytest

from conductor import Conductor, RunResult, load_config
from conductor.algorithms.table import ALGORITHMS

HERE = Path(__file__).parent
JOB = HERE.parents[1] / "examples" / "reverse" / "job.toml"
SMALL = [
    "steps=40",
    "batch_groups=16",
    "group_size=16",
    "sampling.max_tokens=2",
    "filter.equal_rewards=keep",
    f"prompts.function={HERE / 'two_digits.py'}:prompt",
    f"reward.function={HERE / 'two_digits.py'}:reward",
    "reward.cheap=true",
    "train.lr=5e-3",
    "engine.threads=1",
    "train.threads=1",
]
LOSSES = {
    "dapo": ["train.algorithm=dapo"],
    "dual-clip": ["train.dual_clip=3.0"],
    "gspo": ["train.algorithm=gspo", "train.clip_low=0.01", "train.clip_high=0.02"],
    "cispo": ["train.algorithm=cispo"],
    "reinforce": ["train.loss=reinforce"],
    "token-tis": ["train.loss=reinforce", "train.importance=token"],
    "sequence-tis": ["train.loss=reinforce", "train.importance=sequence"],
    "constant": ["train.algorithm=dr_grpo"],
    "entropy": ["train.entropy_bonus=0.01"],
    "decoupled": ["train.proximal=start", "train.importance=token", "train.minibatches=2"],
    "rejection": ['train.reject={by="token",low=0.2,high=5.0}'],
    "penalty": ["train.kl.coef=0.001"],
    "schedule": ["train.schedule.kind=cosine", "train.schedule.warmup=2", "train.schedule.floor=0.2"],
}

pytestmark = [pytest.mark.real_time, pytest.mark.slow]


async def learn(run_dir: Path, *overrides: str, reward: float) -> RunResult:
    """Check that the reward of guessing, 0.1, becomes one of at least ``reward``."""
    result = await Conductor.run(load_config(JOB, overrides=[*SMALL, *overrides], run_dir=str(run_dir)))
    assert result.reward_first is not None
    assert result.reward_last is not None
    assert result.reward_first < 0.2
    assert result.reward_last >= reward
    assert result.accounts.balanced
    shown = {"loss", "kl/behaviour", "entropy", "clip_fraction", "ratio/mean", "grad_norm"}
    for record in result.metrics:
        assert shown <= record.metrics.keys()
        graded = record.metrics["tokens/completion"] > 0
        assert {"length/mean", "reward/mean"} & record.metrics.keys() == (
            {"length/mean", "reward/mean"} if graded else set()
        )
    return result


@pytest.mark.parametrize("name", ALGORITHMS)
async def test_every_algorithm_learns(tmp_path: Path, name: str) -> None:
    await learn(tmp_path / "run", f"train.algorithm={name}", "steps=80", reward=0.9)


@pytest.mark.parametrize("name", LOSSES)
async def test_every_loss_learns_one_version_behind(tmp_path: Path, name: str) -> None:
    """On policy all losses have one gradient; only where tokens are older do they differ."""
    result = await learn(tmp_path / "run", "max_age=1", *LOSSES[name], reward=0.5)
    assert max(record.metrics["age/max"] for record in result.metrics) == 1
