"""Runs that one fault used to end and that can go on: each was found by the fault search, and goes to its end."""

import pytest

from conductor.config import RunConfig
from conductor.simulation.laws import broken
from conductor.simulation.search import run_schedule
from conductor.simulation.shapes import draw
from protocols.faults import parse_plan
from protocols.inference import Sampling

JOB = RunConfig(steps=1, batch_groups=1, group_size=2, sampling=Sampling(max_tokens=1))

ENGINES = [
    pytest.param(32, "hang@Engine.load_weights#2+45", id="one of two engines hangs while it loads"),
    pytest.param(522, "preemption@Engine:rollout/0@2.77+0", id="an engine is gone and back at once"),
    pytest.param(1049, "preemption@Engine:rollout/0@3+20", id="the engine comes back after a while"),
    pytest.param(1, "partial_publish@Engine.load_weights#1+0", id="half of the first weights came"),
    pytest.param(1, "crash@Engine.load_weights#2+3", id="an engine dies of its weights"),
]


@pytest.mark.parametrize(("seed", "faults"), ENGINES)
def test_a_run_goes_on_without_an_engine_and_with_it_again(seed: int, faults: str) -> None:
    """Law 7: what another try makes up for ends no run."""
    plan = parse_plan(faults)
    life = run_schedule(draw(JOB, seed, plan))
    assert life.observed.hits, "the fault did not happen"
    assert life.error is None
    assert broken(life, plan) == ()
