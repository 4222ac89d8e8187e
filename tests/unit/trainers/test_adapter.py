"""The adapter as the controller sees it: names, options, problems, and no torch before it is needed."""

import subprocess
import sys
from typing import Any, get_args

import msgspec
import pytest

from backends.trainers import torch as adapter
from backends.trainers.torch.options import CriticConfig, KlConfig, RejectConfig, ScheduleConfig
from backends.trainers.torch.recipes import RECIPES, objective_of
from conductor.algorithms.table import ALGORITHMS
from protocols.adapters import known_kinds, resolve
from protocols.training import Algorithm
from tests.support.batches import site
from tests.unit.trainers.plain import OBJECTIVES


def test_it_is_found_by_its_kind() -> None:
    assert "torch" in known_kinds("train")
    assert resolve("train", "torch") is adapter


def test_importing_it_imports_no_torch() -> None:
    """``conductor validate`` has to answer at once, and on machines without torch."""
    code = "import sys, backends.trainers.torch; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)  # noqa: S603 - our own code


def test_a_job_without_a_model_is_a_problem() -> None:
    assert not adapter.check(adapter.Config(), site())
    without = msgspec.structs.replace(site(), model=None)
    assert [problem.field for problem in adapter.check(adapter.Config(), without)] == ["model"]


@pytest.mark.parametrize(
    "options",
    [
        {"lr": 0.0},
        {"betas": [0.9, 1.0]},
        {"betas": [0.9]},
        {"clip_low": 1.1},
        {"algorithm": "gpro"},
        {"loss": "ppo"},
        {"proximal": "old"},
        {"returns": "td"},
        {"gamma": 1.1},
        {"epochs": 0},
        {"minibatches": 0},
        {"kl": {"coef": -1.0}},
        {"kl": {"coef": 1.0, "estimator": "k4"}},
        {"critic": {"lr": 0.0}},
        {"reject": {"by": "sample"}},
        {"schedule": {"kind": "cyclic"}},
        {"schedule": {"floor": 2.0}},
        {"dual_clip": 1.0},
        {"importance": "group"},
        {"importance_cap": 0.0},
        {"aggregation": "prompt"},
        {"aggregation_length": 0},
        {"entropy_bonus": -0.1},
        {"max_grad_norm": -1.0},
        {"micro_batch_tokens": 0},
        {"threads": 0},
        {"learning_rate": 1e-3},
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(options, adapter.Config)


@pytest.mark.parametrize(
    ("options", "field", "why"),
    [
        ({"loss": "cispo", "dual_clip": 3.0}, "dual_clip = 3", "the loss 'cispo' has no dual clip"),
        (
            {"importance": "token"},
            "importance = 'token'",
            "the loss 'clip' has the ratio to the policy that drew the tokens in it already",
        ),
        ({"algorithm": "dr_grpo"}, "aggregation_length", "aggregation = 'constant' divides by it"),
        ({"aggregation_length": 8}, "aggregation_length = 8", "aggregation = 'sequence' does not divide by it"),
        ({"gamma": 0.9}, "gamma = 0.9", "returns = 'sample' discounts nothing"),
        ({"algorithm": "reinforce_pp", "lam": 0.9}, "lam = 0.9", "returns = 'discounted' has no critic to weigh"),
        (
            {"critic": CriticConfig(lr=1e-3)},
            "critic = {'lr': 0.001, 'clip': 0.2}",
            "returns = 'sample' has no critic",
        ),
        (
            {"kl": KlConfig(coef=0.1, place="reward")},
            "kl.place = 'reward'",
            "returns = 'sample' knows no rewards of tokens to take it off",
        ),
        ({"reject": RejectConfig(by="token", low=5.0)}, "reject.low = 5", "no ratio is between 5 and 5"),
        (
            {"schedule": ScheduleConfig(kind="cosine")},
            "schedule.steps",
            "'cosine' falls towards it, and the run has no last step",
        ),
        (
            {"schedule": ScheduleConfig(kind="linear", warmup=10, steps=10)},
            "schedule.warmup = 10",
            "the fall ends at step 10, and nothing is left of it",
        ),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, Any], field: str, why: str) -> None:
    """One that is silently without effect looks like one that does not help."""
    (problem,) = adapter.check(adapter.Config(**options), site())
    assert str(problem).startswith(f"train.{field}: {why}; ")


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_can_be_asked_for(name: str) -> None:
    assert not adapter.check(msgspec.convert(OBJECTIVES[name], adapter.Config), site())


def test_both_halves_know_the_same_algorithms() -> None:
    """What an algorithm does with rewards is the controller's, what it does with tokens the trainer's."""
    assert RECIPES.keys() == ALGORITHMS.keys() == set(get_args(Algorithm))
    for name, recipe in RECIPES.items():
        assert (recipe.returns == "sample") == (name in _COMPARING or name == "reinforce_pp_baseline")


_COMPARING = {name for name, estimator in ALGORITHMS.items() if estimator.compares}


@pytest.mark.parametrize("name", RECIPES)
def test_every_algorithm_can_be_asked_for_by_its_name_alone(name: Algorithm) -> None:
    at = msgspec.structs.replace(site(), max_tokens=8)
    assert not adapter.check(adapter.Config(algorithm=name), at)
    objective = objective_of(adapter.Config(algorithm=name), at.max_tokens)
    assert objective.aggregation_length == (8 if objective.aggregation == "constant" else None)


def test_what_the_job_says_goes_before_the_recipe() -> None:
    objective = objective_of(adapter.Config(algorithm="gspo", clip_low=0.1, aggregation="token"), None)
    assert (objective.loss, objective.clip_low, objective.clip_high) == ("gspo", 0.1, 4e-4)
    assert objective.aggregation == "token"


def test_a_single_rank_has_nothing_to_shard() -> None:
    cfg = adapter.Config(sharding="full_shard")
    (problem,) = adapter.check_ranks(cfg, 1)
    assert (problem.field, problem.value) == ("train.sharding", "'full_shard'")
    assert "fleet.roles.policy.instances" in problem.mend
    assert not adapter.check_ranks(cfg, 2)
    assert not adapter.check_ranks(adapter.Config(), 1)
