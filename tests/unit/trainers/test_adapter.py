"""The adapter as the controller sees it: names, options, problems, and no torch before it is needed."""

import subprocess
import sys

import msgspec
import pytest

from backends.trainers import torch as adapter
from protocols.adapters import known_kinds, resolve
from tests.support.batches import site


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
        {"clip_low": 1.0},
        {"max_grad_norm": -1.0},
        {"micro_batch_tokens": 0},
        {"threads": 0},
        {"learning_rate": 1e-3},
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(options, adapter.Config)
