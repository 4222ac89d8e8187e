"""Two ranks that hold a part each of what they train, in processes of their own."""

import os
import signal
from pathlib import Path

import anyio
import pytest
import torch
from safetensors.torch import load_file

from backends import processes
from conductor import Conductor, RunResult, load_config
from conductor.inspection import inspect, read_record
from conductor.observe.observer import Unwatched
from conductor.result import Accounts
from protocols.incidents import Incident
from protocols.messages import WorkerId
from protocols.sections import Site
from protocols.tracking import StepRecord
from tests.support.small_runs import JOB, REPEATABLE, SMALL, finish, samples

SHARDED = [
    "backend.kind=processes",
    "fleet.roles.policy.instances=2",
    "train.sharding=full_shard",
    'fleet.environment={OMP_NUM_THREADS="1"}',
]
EPS = "train.eps=1e-3"  # a smaller one makes a step of noise where gradients are 0
METRICS = ("loss", "grad_norm", "kl/behaviour", "mismatch/max")

pytestmark = [pytest.mark.real_time, pytest.mark.slow, pytest.mark.timeout(500)]


class Reached(Unwatched):
    """Tells when a run has made a step."""

    def __init__(self, step: int) -> None:
        self._step = step
        self.event = anyio.Event()

    def stepped(self, record: StepRecord, accounts: Accounts) -> None:
        """Ring."""
        if record.step == self._step:
            self.event.set()


def same_weights(result: RunResult, expected: RunResult) -> None:
    mine, theirs = (load_file(Path(str(one.checkpoint), "model.safetensors")) for one in (result, expected))
    assert mine.keys() == theirs.keys()
    for name, tensor in theirs.items():
        torch.testing.assert_close(mine[name], tensor, rtol=0, atol=1e-5)


async def test_sharded_ranks_in_processes_train_what_one_process_trains(tmp_path: Path) -> None:
    """Issue E: single-process losses to 1e-5, with the same samples and rewards, and the weights that engines get."""
    alone, its_events = await finish(tmp_path / "alone", "steps=3", EPS)
    sharded, events = await finish(tmp_path / "sharded", "steps=3", EPS, *SHARDED)
    assert samples(events) == samples(its_events)
    for name in METRICS:
        numbers = [[record.metrics[name] for record in result.metrics] for result in (sharded, alone)]
        assert numbers[0] == pytest.approx(numbers[1], abs=1e-5), name
    same_weights(sharded, alone)


async def test_a_run_whose_shard_is_killed_goes_back_to_its_last_checkpoint(tmp_path: Path) -> None:
    """Issue E: nobody has its part; gone back, the run comes to where it would have come, with balanced books."""
    alone, _ = await finish(tmp_path / "alone", "steps=6", EPS)
    own = ["steps=6", EPS, "checkpoint.every=1"]
    cfg = load_config(JOB, overrides=[*SMALL, *REPEATABLE, *own, *SHARDED], run_dir=str(tmp_path / "run"))
    reached = Reached(2)
    async with processes.open(processes.Config(), Site(job_dir=".")) as backend:

        async def kill() -> None:
            await reached.event.wait()
            pid = (await backend.launcher.poll())[WorkerId("policy/1")].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kill)
            result = await Conductor.run(cfg, backend=backend, observer=reached)
    record = read_record(cfg)
    found = inspect(record)
    assert found.balanced
    assert (found.steps, found.lives) == (6, 2)
    (incident,) = [one for one in record.events if isinstance(one, Incident)]
    assert (incident.workers, incident.level, incident.verdict) == (("policy/1",), "job", "restored")
    same_weights(result, alone)
