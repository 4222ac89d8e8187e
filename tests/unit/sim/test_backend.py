"""``[backend] kind = "sim"`` in a job: what it brings, what it refuses, how many engines it is given."""

from pathlib import Path

import msgspec
import pytest

import backends.sim
from backends.sim.virtual_time import VirtualTimeLoop
from conductor.config import RunConfig
from conductor.simulation.life import in_simulation, live
from conductor.validation import find_problems
from protocols.adapters import known_kinds
from protocols.faults import parse_plan
from protocols.inference import Sampling
from protocols.sections import Section, Site

JOB = RunConfig(steps=6, batch_groups=2, group_size=2, engines=3, sampling=Sampling(max_tokens=4))


def test_it_is_a_kind_of_backend_that_needs_no_other_adapter() -> None:
    """What is never opened is not looked at: a job is simulated where torch is not installed."""
    assert "sim" in known_kinds("backend")
    cfg = in_simulation(
        msgspec.structs.replace(JOB, engine=Section(kind="no_such_engine"), train=Section(kind="none")), {}
    )
    assert [problem.field for problem in find_problems(cfg)] == ["prompts"]
    assert find_problems(cfg, given={"prompts"}) == []


def test_it_writes_nothing_and_says_so(tmp_path: Path) -> None:
    problems = backends.sim.check(backends.sim.Config(), Site(job_dir="/", run_dir=str(tmp_path)))
    assert ["conductor simulate JOB" in problem.mend for problem in problems] == [True]


def test_a_wrong_distribution_is_a_problem_of_the_job() -> None:
    problems = backends.sim.check(backends.sim.Config(train="soon"), Site(job_dir="/"))
    told = [(problem.field, problem.value, problem.why.partition(":")[0]) for problem in problems]
    assert told == [("backend.train", "'soon'", "it names no distribution")]


def test_it_names_its_loop() -> None:
    loop = backends.sim.loop_factory(7, horizon_s=5.0)()
    assert isinstance(loop, VirtualTimeLoop)
    loop.close()


def test_as_many_engines_are_launched_as_the_job_says() -> None:
    life = live(in_simulation(JOB, {"slots": 2}))
    assert life.result is not None
    assert life.usage is not None
    assert (life.usage.engines, life.usage.slots) == (3, 6)


def test_the_job_may_carry_its_faults() -> None:
    plan = parse_plan("preemption@Engine:rollout/1@2.5+1")
    life = live(in_simulation(JOB, {"faults": msgspec.to_builtins(plan)}))
    assert life.result is not None
    assert life.result.steps == 6
    assert [hit.at_s for hit in life.observed.hits] == [2.5]


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_a_life_repeats(seed: int | None) -> None:
    """The order of ready tasks comes from the seed alone."""
    traces = [live(in_simulation(JOB, {"sample": "lognormal:1"}), seed=seed, trace=True) for _ in range(2)]
    assert traces[0].observed.trace == traces[1].observed.trace
