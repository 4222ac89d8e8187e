"""Two ranks that hold a part each of what they train, in processes of their own."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.support.small_runs import finish, samples

SHARDED = [
    "backend.kind=processes",
    "fleet.roles.policy.instances=2",
    "train.sharding=full_shard",
    'fleet.environment={OMP_NUM_THREADS="1"}',
]
STEPS = ["steps=3", "train.eps=1e-3"]  # a smaller eps makes a step of noise where gradients are 0

pytestmark = [pytest.mark.real_time, pytest.mark.slow, pytest.mark.timeout(300)]


async def test_sharded_ranks_in_processes_train_what_one_process_trains(tmp_path: Path) -> None:
    """Issue E: single-process losses to 1e-5, with the same samples and rewards, and the weights that engines get."""
    alone, its_events = await finish(tmp_path / "alone", *STEPS)
    sharded, events = await finish(tmp_path / "sharded", *STEPS, *SHARDED)
    assert samples(events) == samples(its_events)
    for name in ("loss", "grad_norm", "kl/behaviour", "mismatch/max"):
        numbers = [[record.metrics[name] for record in result.metrics] for result in (sharded, alone)]
        assert numbers[0] == pytest.approx(numbers[1], abs=1e-5), name
    weights, expected = (load_file(Path(str(result.checkpoint), "model.safetensors")) for result in (sharded, alone))
    assert weights.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(weights[name], tensor, rtol=0, atol=1e-5)
