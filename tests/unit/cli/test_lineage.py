"""``inspect --sample`` and ``--step``: from a run's record alone, the way of what it trained."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from backends.ledgers import sqlite
from conductor.algorithms.table import ALGORITHMS
from conductor.cli.main import main
from protocols.ledger import Claimed, Graded
from protocols.sections import Site
from tests.unit.cli.test_commands import JOB

pytestmark = pytest.mark.real_time  # the commands start a loop of their own


@pytest.fixture
def folder(tmp_path: Path) -> str:
    path, run_dir = tmp_path / "job.toml", str(tmp_path / "run")
    path.write_text(JOB, encoding="utf-8")
    assert invoke("run", str(path), "--run-dir", run_dir, "--quiet").exit_code == 0
    return run_dir


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def told(folder: str, *arguments: str) -> Any:
    result = invoke("inspect", folder, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def events(folder: str) -> tuple[Any, ...]:
    return sqlite.read(sqlite.Config(), Site(job_dir=folder, run_dir=folder)).events


def test_every_sample_of_a_step_leads_back_to_what_the_record_says_of_it(folder: str) -> None:
    """Issue H: nobody could say where a sample went. Here the way is compared with the events, sample by sample."""
    graded = {event.lease_id: event for event in events(folder) if isinstance(event, Graded)}
    claims = [event for event in events(folder) if isinstance(event, Claimed)]
    for number, claim in enumerate(claims, start=1):
        step = told(folder, "--step", str(number))
        assert [group["lease_id"] for group in step["groups"]] == list(claim.leases)
        assert step["batch"] == claim.dispatch_id
        rewards = [[grade.reward for grade in graded[lease].grades] for lease in claim.leases]
        assert [group["rewards"] for group in step["groups"]] == rewards
        weights = [list(column) for column in ALGORITHMS["grpo"].advantages(rewards)]
        assert [group["advantages"] for group in step["groups"]] == weights
        for lease, column in zip(claim.leases, weights, strict=True):
            for index, made in enumerate(graded[lease].receipt.samples):
                sample = told(folder, "--sample", f"{lease}/0/{index}")
                assert sample["text"] == made.preview
                assert sample["versions"] == [[one.version, one.count] for one in made.segments]
                assert sample["engine"] == made.engine
                assert sample["reward"] == graded[lease].grades[index].reward
                assert sample["advantage"] == column[index]
                assert (sample["step"], sample["batches"]) == (number, [claim.dispatch_id])


def test_the_times_of_an_attempt_are_in_order(folder: str) -> None:
    (attempt,) = told(folder, "--sample", "L0/0/0")["attempts"]
    assert 0 <= attempt["began_s"] <= attempt["finished_s"] <= attempt["graded_s"]
    assert attempt["fate"] == "trained"


def test_a_request_id_names_its_sample(folder: str) -> None:
    """What a log of an engine says can be looked up as it stands there."""
    assert told(folder, "--sample", "policy.1/L1/0/1/0") == told(folder, "--sample", "L1/0/1")


def test_people_get_tables(folder: str) -> None:
    lines = invoke("inspect", folder, "--sample", "L2/0/1").stdout.splitlines()
    assert lines[0] == "sample L2/0/1"
    assert any(line.startswith("trained   in step 2, ") and "advantage" in line for line in lines)
    assert lines[-1].split()[-1] == "trained"
    step = invoke("inspect", folder, "--step", "1").stdout.splitlines()
    assert step[0] == "step 1 trained D0 of 2 groups"
    assert [line.split()[0] for line in step[3:5]] == ["L0/0", "L1/0"]


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (("--sample", "L9/0/0"), "the record tells nothing of L9"),
        (("--sample", "L0/7/0"), "L0 had no attempt 7; it had 0"),
        (("--sample", "L0/0/5"), "L0 has samples 0 to 1"),
        (("--sample", "L0"), "'L0' names no sample; write LEASE/ATTEMPT/INDEX, as in L17/0/3"),
        (("--step", "9"), "the record tells of no step 9; its last one is 2"),
        (("--step", "1", "--sample", "L0/0/0"), "one thing at a time: --sample or --step"),
    ],
)
def test_what_the_record_does_not_tell_is_said_in_words(folder: str, asked: tuple[str, ...], answer: str) -> None:
    result = invoke("inspect", folder, *asked)
    assert (result.exit_code, result.stderr.strip()) == (2, answer)
