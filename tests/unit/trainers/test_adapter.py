"""The adapter as the controller sees it: names, options, problems, and no torch before it is needed."""

import subprocess
import sys
from typing import Any

import msgspec
import pytest

from backends.trainers import torch as adapter
from protocols.adapters import known_kinds, resolve
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
        {"loss": "ppo"},
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
        ({"aggregation": "constant"}, "aggregation_length", "aggregation = 'constant' divides by it"),
        ({"aggregation_length": 8}, "aggregation_length = 8", "aggregation = 'token' does not divide by it"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, Any], field: str, why: str) -> None:
    """One that is silently without effect looks like one that does not help."""
    (problem,) = adapter.check(adapter.Config(**options), site())
    assert str(problem).startswith(f"train.{field}: {why}; ")


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_can_be_asked_for(name: str) -> None:
    assert not adapter.check(msgspec.convert(OBJECTIVES[name], adapter.Config), site())
