"""``conductor simulate``: the table, the search, the replay."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from conductor.cli.main import main

ROOT = Path(__file__).parents[2]
JOB = str(ROOT / "examples" / "reverse" / "job.toml")


def simulate(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["simulate", JOB, *arguments])


@pytest.mark.real_time
def test_the_table_compares_the_settings_with_the_loop_and_the_bound() -> None:
    """ORACLES.md: the speed-up over the synchronous loop comes from the tail, and is bounded by it."""
    small = ("--set", "batch_groups=4", "--set", "group_size=4", "--slots", "8", "--steps", "30")
    small = (*small, "--set", "staleness=loose")
    result = simulate(*small, "--tail", "lognormal:1.0", "--sweep", "max_age=0,2,8", "--json")
    assert result.exit_code == 0, result.output
    none, two, eight = json.loads(result.stdout)
    assert none["speed_up"] == 1.0
    assert none["age_max"] == 0
    assert none["of_bound"] < 0.5
    for row in (two, eight):
        assert 0.95 < row["of_bound"] < 1.02
        assert row["speed_up"] == pytest.approx(row["of_bound"] / none["of_bound"], rel=0.1)
    assert "the engines limit it" in eight["limit"]
    assert all(row["waste"] < 1e-6 and row["length_ratio"] == pytest.approx(1.0) for row in (none, two, eight))


@pytest.mark.real_time
def test_people_get_a_table_and_a_sentence_for_each_row() -> None:
    small = ("--set", "batch_groups=2", "--set", "group_size=2", "--steps", "10")
    result = simulate(*small, "--train", "5", "--sweep", "max_age=0,1")
    assert result.exit_code == 0, result.output
    assert "of bound" in result.stdout
    assert "max_age 0: engines and trainer wait for each other" in result.stdout
    assert "max_age 1: the trainer limits it" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("--tail", "fast"), "backend"),
        (("--faults", "burn@Engine.generate"), "--faults"),
        (("--faults", "all"), "--faults"),
        (("--sweep", "max_aeg=1,2"), "max_aeg"),
    ],
)
@pytest.mark.real_time
def test_what_cannot_be_simulated_is_refused_with_the_reason(arguments: tuple[str, ...], field: str) -> None:
    result = simulate(*arguments)
    assert result.exit_code == 2
    assert field in result.stderr


@pytest.mark.real_time
def test_the_search_finds_nothing_and_tells_what_it_reached() -> None:
    """Laws 1, 2, 3, 5 and 7 over 60 schedules with faults."""
    result = simulate("--seeds", "60", "--faults", "all", "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["found"]) == (0, [])
    assert found["runs"] == 60
    assert 0 < found["finished"] < 60


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.real_time
def test_every_fault_hits_every_stage_that_it_can() -> None:
    """Issue D: no cell of the table may be zero."""
    result = simulate("--seeds", "1000", "--faults", "all", "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["found"], found["untouched"]) == (0, [], [])


def replayed(seed: int, hash_seed: int) -> str:
    program = (
        f"from conductor.cli.main import main; main(['simulate', {JOB!r}, '--replay', '{seed}', '--faults', 'all'])"
    )
    done = subprocess.run(  # noqa: S603 - this very interpreter
        [sys.executable, "-c", program],
        env={"PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.mark.real_time
@pytest.mark.parametrize("seed", [2, 13])
def test_a_replay_is_equal_byte_for_byte_in_fresh_processes(seed: int) -> None:
    """MECHANISMS.md: anyio's sets are hashed by address, so a trace was another one in every process."""
    first, *others = [replayed(seed, hash_seed) for hash_seed in (1, 2, 77)]
    assert first.count("\n") > 50
    assert "!! " in first
    assert others == [first, first]


@pytest.mark.real_time
def test_another_seed_is_another_schedule() -> None:
    """The test above can fail."""
    assert simulate("--replay", "3", "--faults", "all").stdout != simulate("--replay", "4", "--faults", "all").stdout
