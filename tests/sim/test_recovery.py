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
    pytest.param(
        7, ";".join(["hang@Engine.status:rollout/0@2+0"] * 4), id="an engine at work is ended for its silence"
    ),
]

OTHERS = [
    pytest.param(660, "preemption@Grader:reward/0@0.35+3", id="the grader comes back after a while"),
    pytest.param(660, "preemption@Grader:reward/0@0.35+45", id="the grader comes back late"),
    pytest.param(2165, "corrupt_payload@Payload.get#23+3", id="the trainer gets a damaged payload"),
    pytest.param(3, "corrupt_payload@Payload.get#2+0", id="the grader gets a damaged payload"),
    pytest.param(4, "lost_request@Trainer.train_step#1+3", id="a step was never asked for"),
    pytest.param(4, "hang@Trainer.train_step#1+0", id="a step hangs"),
    pytest.param(4, "lost_reply@Trainer.train_step#1+0;lost_request@Trainer.outcome#1+0", id="so does its outcome"),
    pytest.param(4, "lost_reply@Trainer.stage_weights#2+0.5", id="weights were staged and nobody heard"),
    pytest.param(4, "hang@Trainer.stage_weights#1+0", id="staging hangs"),
    pytest.param(4, "lost_request@Trainer.train_step#1+0;lost_reply@Trainer.discard#1+0", id="a discard is lost"),
    pytest.param(4, "hang@Payload.release#1+0", id="a release hangs"),
    pytest.param(4, "hang@PromptSource.draw#2+0", id="a prompt does not come"),
]


@pytest.mark.parametrize(("seed", "faults"), [*ENGINES, *OTHERS])
def test_a_run_goes_to_its_end_all_the_same(seed: int, faults: str) -> None:
    """Law 7: what another try makes up for ends no run."""
    plan = parse_plan(faults)
    life = run_schedule(draw(JOB, seed, plan))
    assert {hit.index for hit in life.observed.hits} == set(range(len(plan.faults))), "not all of it happened"
    assert life.error is None
    assert broken(life, plan) == ()
