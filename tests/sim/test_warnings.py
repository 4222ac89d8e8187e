"""What the log warns of: data that grew shorter than what was sampled, and steps that teach nothing."""

import json
from pathlib import Path

import msgspec
import pytest

from backends.sim.grader import alternating
from conductor.config import FilterConfig, RunConfig
from protocols.grading import Grade, GradeFault, GradeRequest
from protocols.inference import Readiness
from protocols.messages import WorkerId
from protocols.rollouts import RolloutLease
from protocols.training import BatchLease, StepReport
from tests.support.runs import run_config, run_scripted
from tests.support.scripted.workloads import ScriptedWorkloads, scripted_workloads


async def warnings(cfg: RunConfig, scripted: ScriptedWorkloads) -> list[str]:
    """Return the warnings of a run, in order."""
    assert cfg.run_dir is not None
    await run_scripted(cfg, scripted)
    log = Path(cfg.run_dir) / "log.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return [line["event"] for line in lines if line["level"] == "warning"]


def is_long(lease: RolloutLease) -> bool:
    return lease.prompt.position % 4 == 0


@pytest.mark.parametrize(("tokens_of_long", "warned"), [(40, 4), (4, 0)])
async def test_data_that_grow_shorter_are_told_of_from_the_eleventh_step_on(
    tmp_path: Path, tokens_of_long: int, warned: int
) -> None:
    """DESIGN.md: dropping the slow shortens the data, and a ratio under 0.95 is a warning."""
    scripted = scripted_workloads(
        1000,
        duration_s=lambda lease: 7.0 if is_long(lease) else 1.0,
        tokens=lambda lease: tokens_of_long if is_long(lease) else 4,
    )
    cfg = run_config(steps=14, batch_groups=4, max_age=1, staleness="drop", run_dir=str(tmp_path))
    assert (await warnings(cfg, scripted)).count("data.shortened") == warned


def all_equal(request: GradeRequest) -> list[Grade | GradeFault]:
    return [Grade(reward=1.0) for _ in request.samples]


@pytest.mark.parametrize(("rewards", "warned"), [(all_equal, 2), (alternating, 0)])
async def test_steps_whose_rewards_are_all_equal_are_told_of(tmp_path: Path, rewards, warned: int) -> None:
    """I62: a run in which nothing is learned looked like any other."""
    cfg = run_config(filter=FilterConfig(equal_rewards="keep"), run_dir=str(tmp_path))
    assert (await warnings(cfg, scripted_workloads(100, rewards=rewards))).count("step.taught_nothing") == warned


def disagreeing(nats: float) -> ScriptedWorkloads:
    """Return a trainer that gives the engines' tokens other probabilities than they did."""
    scripted = scripted_workloads(100)
    step = scripted.trainer.train_step

    async def train_step(batch: BatchLease) -> StepReport:
        report = await step(batch)
        return msgspec.structs.replace(report, metrics={**report.metrics, "mismatch/mean": nats})

    scripted.trainer.train_step = train_step
    return scripted


@pytest.mark.parametrize(("nats", "warned"), [(0.021, 2), (0.02, 0)])
async def test_engines_that_compute_something_else_than_the_trainer_are_told_of(
    tmp_path: Path, nats: float, warned: int
) -> None:
    """Issue G: train and inference mismatch, a warning with the mend."""
    cfg = run_config(run_dir=str(tmp_path))
    assert (await warnings(cfg, disagreeing(nats))).count("engines.disagree") == warned


async def test_older_weights_are_no_disagreement(tmp_path: Path) -> None:
    """What an older version made has other probabilities by right."""
    cfg = run_config(steps=6, max_age=2, run_dir=str(tmp_path))
    assert 0 < (await warnings(cfg, disagreeing(1.0))).count("engines.disagree") < 6


async def test_an_engine_that_is_gone_is_told_of_once_and_once_more_when_it_is_back(tmp_path: Path) -> None:
    """It was told at every publish: a run of ten thousand steps with one engine too few had ten thousand warnings."""
    scripted, probes = scripted_workloads(100), 0
    prepare = scripted.inference.prepare_rollout

    async def prepare_rollout() -> Readiness:
        nonlocal probes
        probes += 1
        readiness = await prepare()
        engine = frozenset({WorkerId("rollout/9")})
        if 2 <= probes < 6:
            return msgspec.structs.replace(readiness, lost=engine)
        return msgspec.structs.replace(readiness, stale=engine)

    scripted.inference.prepare_rollout = prepare_rollout  # type: ignore[method-assign]
    warned = await warnings(run_config(steps=10, run_dir=str(tmp_path)), scripted)
    assert probes > 8
    assert warned.count("engines.lost") == 1
    log = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [one["members"] for one in log if one["event"] == "engines.back"] == [["rollout/9"]]
