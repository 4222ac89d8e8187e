"""Deadlines that do not nest and capacities that do not suffice are refused, with the numbers, all at once."""

from typing import Any

import pytest

from conductor.config import CheckpointConfig, Deadlines, EvaluationConfig
from conductor.validation import find_problems
from protocols.inference import Sampling
from protocols.sections import Section
from tests.unit.config.test_validation import GOOD, job, texts

TORCH = Section(kind="torch", options={"slots": 8, "max_waiting": 8})


def test_the_watchdog_outlasts_every_other_deadline_by_itself() -> None:
    """I10: a watchdog that barks at a wait within its deadline would end good runs."""
    for field in Deadlines().others:
        deadlines = Deadlines(**{field: 50_000.0})
        assert deadlines.stall_s == 100_000.0
        if field not in {"abort", "group", "reward"}:  # which others must outlast as well
            assert texts(job(deadlines=deadlines)) == []


def test_a_stall_below_other_deadlines_is_refused_with_all_of_them() -> None:
    (problem,) = texts(job(deadlines=Deadlines(stall=600.0, evaluation=100.0)))
    assert problem == (
        "deadlines.stall = 600: a run that waits for as long as these allow does not stand still: start (600), "
        "group (600), reward (600), train (3600), publish (600), checkpoint (600), reconcile (600); "
        "give more than 3600, or leave it out"
    )


def test_a_stall_that_a_pause_between_two_tries_outlasts_is_refused() -> None:
    """A run that waits to try again does not stand still, and no call is open meanwhile."""
    short = dict.fromkeys(Deadlines().others, 5.0) | {"evaluation": 10.0}
    (problem,) = texts(job(deadlines=Deadlines(**short, stall=30.0)))
    assert problem == (
        "deadlines.stall = 30: a run that waits for as long as these allow does not stand still: "
        "a pause between two tries (30); give more than 30, or leave it out"
    )
    assert texts(job(deadlines=Deadlines(**short, stall=30.5))) == []
    assert Deadlines(**short).stall_s == 60.0


def test_deadlines_that_cut_what_they_should_outlast_are_all_told_at_once() -> None:
    deadlines = Deadlines(abort=30.0, reconcile=20.0, stall=25.0, reward=40.0, evaluation=100.0)
    cfg = job(deadlines=deadlines, evaluation=EvaluationConfig(prompts=GOOD))
    found = {problem.field: problem for problem in find_problems(cfg, given=("reward",))}
    assert set(found) == {"deadlines.stall", "deadlines.reconcile", "deadlines.evaluation"}
    assert "one try of an abort takes up to deadlines.abort, 30" in found["deadlines.reconcile"].why
    assert "takes up to 640 (deadlines.group + deadlines.reward)" in found["deadlines.evaluation"].why


def test_one_completion_is_cut_before_its_whole_group_is() -> None:
    """One hanging reward would fail the group, and again at every attempt."""
    reward = Section(kind="function", options={"function": "task.py:reward", "deadline_s": 60})
    cfg = job(reward=reward, deadlines=Deadlines(reward=60.0))
    assert "reward.deadline_s" in {problem.field for problem in find_problems(cfg)}
    fits = job(reward=reward, deadlines=Deadlines(reward=61.0))
    assert "reward.deadline_s" not in {problem.field for problem in find_problems(fits)}


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"batch_groups": 4, "group_size": 4}, None),
        ({"batch_groups": 1, "group_size": 100}, None),
        (
            {"batch_groups": 4, "group_size": 4, "max_age": 1},
            "slots: 8 groups of 4 are 32 samples, and the engine takes 16; give at most 4, or let",
        ),
        ({"batch_groups": 4, "group_size": 4, "max_age": 1, "engines": 2}, None),
        (
            {"batch_groups": 4, "group_size": 4, "max_age": 1.5, "engines": 2},
            "slots: 10 groups of 4 are 40 samples, and 2 engines take 32; give at most 8, or let each engine take more",
        ),
        (
            {"batch_groups": 4, "group_size": 4, "oversample": 1.25},
            "slots: 5 groups of 4 are 20 samples, and the engine takes 16; give at most 4, or let",
        ),
        ({"batch_groups": 4, "group_size": 4, "max_age": 1, "slots": 4}, None),
        (
            {"batch_groups": 2, "group_size": 4, "evaluation": EvaluationConfig(prompts=GOOD, slots=3, samples=3)},
            "slots: 2 groups of 4 are 8 samples beside 9 of an evaluation, and the engine takes 16; give at most 1",
        ),
        (
            {"batch_groups": 2, "group_size": 20, "slots": 2},
            "slots = 2: 2 groups of 20 are 40 samples, and the engine takes 16; let each engine take more (engine.max_",
        ),
    ],
)
def test_more_samples_in_flight_than_the_engine_takes_are_refused(fields: dict[str, Any], problem: str | None) -> None:
    """An engine that is full refuses a group; three times, and the run has failed for its size alone."""
    found = texts(job(engine=TORCH, **fields))
    assert len(found) == (problem is not None)
    assert problem is None or found[0].startswith(problem)


def test_an_engine_that_does_not_say_what_it_takes_is_not_judged() -> None:
    assert texts(job(slots=10**6)) == []


@pytest.mark.parametrize("sampling", [Sampling(max_tokens=8, temperature=0.0), Sampling(max_tokens=8, top_k=1)])
def test_completions_of_an_evaluation_that_would_all_be_the_same_are_refused(sampling: Sampling) -> None:
    evaluation = EvaluationConfig(prompts=GOOD, samples=3, sampling=sampling)
    (problem,) = find_problems(job(evaluation=evaluation))
    assert str(problem).startswith("evaluation.samples = 3: all 3 completions of a prompt would be the same; give 1")


def test_completions_of_an_evaluation_that_the_context_cannot_hold_are_refused() -> None:
    model = Section(kind="scratch", options={"config": {"n_positions": 16}})
    evaluation = EvaluationConfig(prompts=GOOD, sampling=Sampling(max_tokens=99))
    (problem,) = find_problems(job(evaluation=evaluation, model=model), given=("model",))
    assert (problem.field, problem.value) == ("evaluation.sampling.max_tokens", "99")


def test_the_sections_of_an_evaluation_are_checked_like_the_others() -> None:
    evaluation = EvaluationConfig(prompts=Section(kind="jsonll"), reward=Section(kind="nowhere:at_all"))
    found = [problem.field for problem in find_problems(job(evaluation=evaluation))]
    assert found == ["evaluation.prompts.kind", "evaluation.reward.kind"]
    (missing,) = find_problems(job(evaluation=EvaluationConfig()))
    assert (missing.field, missing.why) == ("evaluation.prompts", "is missing")
    assert not find_problems(job(evaluation=evaluation), given=("evaluation.prompts", "evaluation.reward"))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "nothing is while the run trains; set evaluation.every"),
        ({"evaluation": EvaluationConfig(prompts=GOOD)}, "nothing is while the run trains; set evaluation.every"),
        (
            {"evaluation": EvaluationConfig(prompts=GOOD, every=20)},
            "would have no checkpoint; set checkpoint.every to 20",
        ),
        ({"evaluation": EvaluationConfig(prompts=GOOD, every=90)}, ""),
    ],
)
def test_the_best_checkpoints_of_a_job_that_would_find_none_are_refused(fields: dict[str, Any], expected: str) -> None:
    """Issue E: it would keep none, and say so to nobody."""
    found = texts(job(checkpoint=CheckpointConfig(every=30, keep_best=2), **fields))
    assert [text.startswith("checkpoint.keep_best = 2: ") and expected in text for text in found] == [True] * bool(
        expected
    )
