"""Several ranks compute what one process computes, whole or in parts; one that comes late takes over from others."""

from collections.abc import Generator
from typing import Any

import pytest

from backends.trainers.torch.options import CriticConfig, KlConfig
from backends.trainers.torch.recipes import RECIPES
from protocols.sections import Section
from tests.support.batches import LLAMA
from tests.support.ranked import OnAllRanks, Trained, open_ranks, train, train_and_hand_over, train_together

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]  # processes of their own that load torch

STEPS = 3
JOBS: dict[str, dict[str, Any]] = {
    **{str(name): {"algorithm": name} for name in RECIPES},
    "several updates": {"algorithm": "grpo", "epochs": 2, "minibatches": 2, "proximal": "start"},
    "more minibatches than a rank has groups": {"algorithm": "reinforce_pp", "minibatches": 3},
    "reference and critic": {"algorithm": "ppo", "kl": KlConfig(coef=0.1), "critic": CriticConfig(lr=1e-2)},
    "small passes": {"algorithm": "dapo", "micro_batch_tokens": 1},
}
SHARDINGS = ("no_shard", "full_shard")
ADAPTERS = Section(kind="scratch", options={**LLAMA.options, "lora": {"rank": 2, "alpha": 4}})


@pytest.fixture(scope="module")
def on_all() -> Generator[OnAllRanks]:
    with open_ranks() as call:
        yield call


@pytest.fixture(scope="module")
def together(on_all: OnAllRanks) -> list[dict[str, Trained]]:
    jobs = {f"{sharding} {name}": {**job, "sharding": sharding} for name, job in JOBS.items() for sharding in SHARDINGS}
    return train_together(jobs, steps=STEPS, on_all=on_all)


@pytest.mark.parametrize("sharding", SHARDINGS)
@pytest.mark.parametrize("name", JOBS)
def test_ranks_compute_what_one_process_computes(name: str, sharding: str, together: list[dict[str, Trained]]) -> None:
    """Law: loss and gradient change by 1e-5 at most with the data-parallel split (I65: off by 0.5 and by 4)."""
    alone = train(JOBS[name], steps=STEPS)
    first, second = (one[f"{sharding} {name}"] for one in together)
    if sharding == "no_shard":
        assert first.values == second.values
    _same(first, second, alone)


@pytest.mark.parametrize("model", [LLAMA, ADAPTERS], ids=["tied weights", "adapters"])
def test_shards_of_other_models_compute_the_same(model: Section, on_all: OnAllRanks) -> None:
    """A frozen model is split as well as the adapters that are trained beside it."""
    job = {"algorithm": "ppo", "kl": KlConfig(coef=0.1), "critic": CriticConfig(lr=1e-2)}
    first, second = train_together({"": {**job, "sharding": "full_shard"}}, steps=STEPS, model=model, on_all=on_all)
    _same(first[""], second[""], train(job, steps=STEPS, model=model))


def test_a_rank_that_comes_late_takes_over_what_the_others_are(on_all: OnAllRanks) -> None:
    """A lost rank is replaced without a checkpoint: parameters, optimizer, version, critic."""
    options: dict[str, Any] = {"algorithm": "ppo", "critic": CriticConfig(lr=1e-2)}
    first, second = train_and_hand_over(options, on_all)
    alone = train(options, steps=3)
    assert first.metrics == second.metrics
    assert first.values == second.values
    assert first.metrics[0]["loss"] == pytest.approx(alone.metrics[2]["loss"], abs=1e-5)
    assert first.values == pytest.approx(alone.values, abs=1e-5)


def _same(first: Trained, second: Trained, alone: Trained) -> None:
    assert first.metrics == second.metrics
    for mine, theirs in zip(first.metrics, alone.metrics, strict=True):
        assert mine.keys() == theirs.keys()
        assert _not_of_the_split(mine) == pytest.approx(_not_of_the_split(theirs), abs=1e-5, rel=1e-5)
    assert first.values == pytest.approx(alone.values, abs=1e-5)


def _not_of_the_split(metrics: dict[str, float]) -> dict[str, float]:
    return {name: metrics[name] for name in metrics.keys() - {"train/micro_batches", "train/padding_fraction"}}
