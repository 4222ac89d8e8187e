"""The bounds of ORACLES.md, and what the report makes of a run."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.config import RunConfig
from conductor.simulation.bounds import ideal, makespan, one_step_off, synchronous
from conductor.simulation.life import in_simulation, live
from conductor.simulation.report import Window, limit, measure, row, steps_to_simulate
from protocols.inference import Sampling

works = st.lists(st.floats(0.01, 100.0), min_size=1, max_size=60)


@given(works, st.integers(1, 16))
def test_a_greedy_makespan_is_between_its_bounds(work_s: list[float], slots: int) -> None:
    """ORACLES.md: G_avg <= G_max <= G_avg + (1 - 1/K) of the longest."""
    average = sum(work_s) / slots
    assert average - 1e-9 <= makespan(work_s, slots) <= average + (1 - 1 / slots) * max(work_s) + 1e-9


@given(works, st.integers(1, 16), st.floats(0.0, 50.0), st.floats(0.0, 5.0))
def test_the_loops_are_as_fast_as_they_may_be(
    work_s: list[float], slots: int, train_s: float, publish_s: float
) -> None:
    """ORACLES.md: synchronous is slower than one step off, which is slower than the ideal."""
    order = [
        bound(work_s, slots=slots, train_s=train_s, publish_s=publish_s) for bound in (ideal, one_step_off, synchronous)
    ]
    assert order == sorted(order)


def test_worked_by_hand() -> None:
    work_s = [4.0, 1.0, 1.0, 1.0, 1.0]
    assert makespan(work_s, 2) == 4.0
    assert synchronous(work_s, slots=2, train_s=3.0, publish_s=0.5) == 7.5
    assert one_step_off(work_s, slots=2, train_s=3.0, publish_s=0.5) == 4.5
    assert ideal(work_s, slots=2, train_s=3.0, publish_s=0.5) == 4.5
    assert ideal(work_s, slots=2, train_s=9.0, publish_s=0.5) == 9.0


def job(**fields: object) -> RunConfig:
    options = {"sample": fields.pop("sample", "lognormal:1.0"), "slots": fields.pop("slots", 8)}
    options["train"], options["publish"] = str(fields.pop("train", 1.0)), str(fields.pop("publish", 0.0))
    defaults = {
        "steps": 30,
        "staleness": "loose",
        "batch_groups": 4,
        "group_size": 2,
        "sampling": Sampling(max_tokens=1),
    }
    return in_simulation(RunConfig(**(defaults | fields)), options)  # type: ignore[arg-type]


def test_at_max_age_0_the_controller_is_the_synchronous_loop_to_the_microsecond() -> None:
    """I32, law 4: generate, train, publish, and nothing at the same time; the oracle computes it from the draws."""
    life = live(job(steps=12, train=1.5, publish=0.25))
    ends = [moment.at_s for moment in life.moments]
    for step in range(1, 12):
        work_s = [life.work_s(position, sample) for position in range(4 * step, 4 * step + 4) for sample in range(2)]
        expected = synchronous(work_s, slots=8, train_s=1.5, publish_s=0.25)
        assert ends[step] - ends[step - 1] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(("train", "limits"), [(0.1, "the engines limit it"), (10.0, "the trainer limits it")])
def test_far_from_policy_the_controller_comes_to_the_bound(train: float, limits: str) -> None:
    """ORACLES.md: fully asynchronous without starvation is max(G_avg, T)."""
    life = live(job(steps=60, max_age=8, train=train))
    window = measure(life)
    assert window is not None
    assert window.ideal_s / window.step_s == pytest.approx(1.0, abs=0.03)
    assert limits in limit(window, life.cfg)


def test_mean_age_is_the_window_when_the_trainer_is_what_limits() -> None:
    """ORACLES.md: with an admission window of eta, mean age tends to eta when the trainer is the bottleneck."""
    found = row("", live(job(steps=60, max_age=3, train=10.0, sample="constant:1.0")))
    assert found.age_mean == pytest.approx(3.0, abs=0.3)
    assert found.trainer_idle < 0.01


def test_what_is_lent_out_bounds_what_can_be_busy() -> None:
    cfg = job(steps=30, max_age=1, slots=64, train=0.1)
    window = measure(live(cfg))
    assert window is not None
    assert "too little is lent out" in limit(window, cfg)


def test_a_run_that_fails_says_so() -> None:
    found = row("x", live(job(attempts=1, engines=1, sample="constant:1000")))
    assert found.failure is not None
    assert "BudgetExhausted" in found.failure


def test_enough_steps_are_simulated_to_have_a_middle() -> None:
    assert steps_to_simulate(job(steps=1000), 40) == 40
    assert steps_to_simulate(job(steps=1000, max_age=20), 40) == 88
    assert steps_to_simulate(job(steps=10, max_age=20), 40) == 10


@given(st.integers(0, 1000))
def test_the_ideal_of_a_window_is_that_of_its_steps(seed: int) -> None:
    stream = random.Random(seed)
    work_s = tuple(stream.expovariate(1.0) for _ in range(64))
    window = Window(
        steps=4, seconds=40.0, samples=64, busy_s=1.0, slots=8, train_s=stream.random(), publish_s=0.5, work_s=work_s
    )
    assert window.ideal_s == pytest.approx(max(sum(work_s) / 8 / 4 + 0.5, window.train_s))
    assert window.step_s == 10.0
