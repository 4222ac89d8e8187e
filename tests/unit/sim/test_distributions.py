"""Distributions by name: what the number means, and that a name draws the same everywhere."""

import math
import statistics
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.ledgers import sqlite
from backends.sim.distributions import empirical, lognormal, parse, sample_lengths, step_seconds, uniform
from backends.sim.payloads import ScriptedPayloads
from protocols.adapters import Host
from protocols.errors import UserError
from protocols.grading import Grade
from protocols.inference import Segment
from protocols.ledger import Graded
from protocols.messages import LeaseId, PayloadRef, WeightVersion
from protocols.rollouts import GroupReceipt, SampleReceipt
from protocols.sections import Site
from protocols.tracking import StepRecord
from tests.support.texts import exactly

NAMES = [f"7/{position}/{sample}/0" for position in range(500) for sample in range(40)]


def untold(run_dir: Path) -> tuple[float, ...]:
    raise AssertionError(run_dir)


@pytest.mark.parametrize(("text", "seconds"), [("2.5", 2.5), ("constant:2.5", 2.5), ("constant:0", 0.0)])
def test_a_constant_is_its_number_of_seconds(text: str, seconds: float) -> None:
    assert parse(text, untold)("any") == seconds


@pytest.mark.parametrize(("text", "mean_s", "sigma"), [("lognormal:1.0", 1.0, 1.0), ("lognormal:0.5:30", 30.0, 0.5)])
def test_of_a_lognormal_the_number_is_sigma_and_the_mean_is_one_second(text: str, mean_s: float, sigma: float) -> None:
    """A sigma that was taken for the deviation of the seconds would make another tail."""
    drawn = [parse(text, untold)(name) for name in NAMES]
    assert statistics.fmean(drawn) == pytest.approx(mean_s, rel=0.03)
    assert statistics.stdev(math.log(one) for one in drawn) == pytest.approx(sigma, rel=0.02)


@given(st.text())
def test_every_name_stands_for_one_number_between_0_and_1(name: str) -> None:
    assert 0.0 < uniform(name) < 1.0
    assert uniform(name) == uniform(name)


def test_a_name_draws_the_same_in_every_process() -> None:
    """``hash`` is salted for each process; a replay drew other lengths."""
    assert lognormal(1.0)("7/0/0/0") == pytest.approx(0.3188452260, abs=1e-9)


def test_empirical_values_come_as_often_as_they_were_measured() -> None:
    drawn = [empirical([1.0, 1.0, 1.0, 5.0])(name) for name in NAMES]
    assert set(drawn) == {1.0, 5.0}
    assert drawn.count(5.0) / len(drawn) == pytest.approx(0.25, rel=0.05)


def test_a_finished_run_is_read_without_its_first_step(tmp_path: Path) -> None:
    records = [StepRecord(step=step, metrics={"time/train_s": float(step)}) for step in (1, 2, 3)]
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, records)))
    assert step_seconds(tmp_path, "time/train_s") == (2.0, 3.0)
    assert parse(f"empirical:{tmp_path}", lambda run: step_seconds(run, "time/train_s"))("any") in {2.0, 3.0}
    with pytest.raises(
        UserError,
        match=exactly(
            f"{tmp_path}/metrics.jsonl tells nothing of time/publish_s; name the folder of a run that has trained"
        ),
    ):
        step_seconds(tmp_path, "time/publish_s")


@pytest.mark.parametrize("text", ["", "fast", "constant:-1", "constant:nan", "lognormal:inf", "lognormal:1:2:3", "x:1"])
def test_what_is_no_distribution_is_refused_with_what_would_be_one(text: str) -> None:
    with pytest.raises(
        UserError, match=exactly("it names no distribution: constant:SECONDS, lognormal:SIGMA, empirical:RUN_DIR")
    ):
        parse(text, untold)


@pytest.mark.real_time
async def test_lengths_come_from_the_record_of_a_run(tmp_path: Path) -> None:
    """A mean per step has no tail; the record has every sample."""
    site = Site(job_dir=str(tmp_path), run_dir=str(tmp_path))
    async with sqlite.open(sqlite.Config(), Host(site=site, payloads=ScriptedPayloads())) as ledger:
        text = f"the record in {tmp_path} tells nothing of samples; name the folder of a run that has trained"
        with pytest.raises(UserError, match=exactly(text)):
            sample_lengths(tmp_path)
        await ledger.append((graded("L0", 3, 90), graded("L1", 5)))
    assert sample_lengths(tmp_path) == (3, 90, 5)


def graded(lease_id: str, *lengths: int) -> Graded:
    samples = tuple(
        SampleReceipt(
            tokens=tokens, segments=(Segment(version=WeightVersion(0), count=tokens),), finish="stop", preview=""
        )
        for tokens in lengths
    )
    receipt = GroupReceipt(
        lease_id=LeaseId(lease_id),
        attempt=0,
        prompt_tokens=1,
        payload=PayloadRef(owner="o", key="k"),
        samples=samples,
    )
    return Graded(lease_id=LeaseId(lease_id), receipt=receipt, grades=tuple(Grade(reward=0.0) for _ in samples))
