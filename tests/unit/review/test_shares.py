"""What limited a run: simulated ones that are limited by each part are told apart, on virtual time."""

import re
from importlib import resources
from typing import Any

import pytest

from conductor.config import RunConfig
from conductor.review.chronicle import Chronicle, chronicle
from conductor.review.shares import PARTS, shares, verdict
from conductor.simulation.life import in_simulation, live
from protocols.inference import Sampling
from protocols.sections import Section

SLOW_S = "8.0"
QUICK: dict[str, Any] = {"sample": "0.5", "train": "0.5", "publish": "0.1", "reward": "0.1", "slots": 8}
OPTION = {"generate": "sample", "grade": "reward", "train": "train", "publish": "publish"}
SENTENCES = {
    "generate": "the engines limited it",
    "grade": "grading limited it",
    "train": "the trainer limited it",
    "publish": "publishing weights limited it",
}


def simulated(max_age: float, staleness: str = "wait", **world: Any) -> Chronicle:
    sections = {name: Section(kind="sim") for name in ("prompts", "reward", "episode", "engine", "train")}
    values: dict[str, Any] = {"steps": 12, "batch_groups": 4, "group_size": 2, "engines": 2, "staleness": staleness}
    sampling = Sampling(max_tokens=8)
    cfg = RunConfig(name="limits", max_age=max_age, sampling=sampling, **values, **sections)
    life = live(in_simulation(cfg, {**QUICK, **world}))
    assert life.error is None, life.error
    return chronicle(life.events)


@pytest.mark.parametrize("max_age", [0, 1, 4])
@pytest.mark.parametrize("part", list(OPTION))
def test_the_part_that_limits_a_run_is_named(part: str, max_age: float) -> None:
    """Issue H: a report that names the wrong one has people buy engines for a trainer that is too slow."""
    found = verdict(simulated(max_age, **{OPTION[part]: SLOW_S}), max_age=max_age)
    assert found.by == part, found.sentence
    assert found.sentence.startswith(SENTENCES[part])
    assert sum(found.shares.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("max_age", [0, 1, 4])
def test_the_parts_of_a_step_add_up_to_it(max_age: float) -> None:
    """Every second of a step is told of once."""
    told = simulated(max_age, sample="lognormal:1.0:2")
    assert len(told.counted) == 12
    for step in told.counted:
        split = shares(step, told)
        assert set(split) == set(PARTS)
        assert min(split.values()) >= 0
        assert sum(split.values()) == pytest.approx(step.metrics["time/step_s"])


def test_a_closed_loop_of_equals_is_told_how_to_open() -> None:
    """Two parts that take equally long, one after the other: neither more engines nor a faster trainer is the mend."""
    found = verdict(simulated(0, sample="2.0", train="2.0"), max_age=0)
    assert found.sentence.endswith("max_age above 0 would let them work at the same time")


def test_a_run_without_a_step_says_so() -> None:
    told = simulated(0)
    told.steps.clear()
    assert verdict(told, max_age=0).by is None


def test_every_part_has_its_colour() -> None:
    """A part that the page does not know is drawn nowhere, and its share is missing from the bar of its step."""
    script = resources.files("conductor.review").joinpath("assets/page.js").read_text(encoding="utf-8")
    (colours,) = re.findall(r"const parts = \{(.*?)\}", script, re.DOTALL)
    assert re.findall(r"(\w+):", colours) == list(PARTS)
