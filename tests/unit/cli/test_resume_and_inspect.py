"""``run --resume``, ``resume`` and ``inspect`` over scripted workloads, with the ledger that users have."""

import json
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from click.testing import CliRunner, Result

from backends.inproc.payloads import InprocPayloads
from backends.ledgers import sqlite
from conductor.cli.main import main
from protocols.adapters import Host
from protocols.incidents import Incident
from protocols.messages import WeightVersion, WorkerId
from protocols.sections import Site
from tests.unit.cli.test_commands import JOB, SCRIPTED

pytestmark = pytest.mark.real_time  # the commands start a loop of their own


@pytest.fixture
def job(tmp_path: Path) -> str:
    path = tmp_path / "job.toml"
    path.write_text(JOB.replace("trackers = []", ""), encoding="utf-8")
    return str(path)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def folder(job: str) -> Path:
    return Path(job).parent / "run"


def run(job: str, *arguments: str) -> Result:
    return invoke("run", job, "--run-dir", str(folder(job)), "--quiet", *arguments)


def inspected(job: str) -> dict[str, Any]:
    result = invoke("inspect", str(folder(job)), "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_run_resume_begins_a_run_and_later_goes_on_with_it(job: str) -> None:
    """One command for a machine that is taken away and given back."""
    assert run(job, "--resume").exit_code == 0
    result = run(job, "--resume", "--json", "--set", "steps=5")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["steps"] == 5
    assert found["accounts"] == {"admitted": 10, "committed": 10, "filtered": 0, "dropped": 0, "open": 0}
    assert found["checkpoint"] == str(folder(job) / "checkpoints" / "step-5")
    steps = [json.loads(line)["step"] for line in (folder(job) / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3, 4, 5]


def test_resume_needs_nothing_but_the_folder(job: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert run(job).exit_code == 0
    Path(job).unlink()
    monkeypatch.chdir(tmp_path.parent)
    result = invoke("resume", str(folder(job)), "--quiet")
    assert result.exit_code == 0, result.output
    assert "4 admitted = 4 trained" in result.stdout


def test_resume_of_a_folder_without_a_run_says_so(tmp_path: Path) -> None:
    result = invoke("resume", str(tmp_path))
    assert result.exit_code == 2
    assert "no run has begun there" in result.stderr


def test_a_changed_job_is_refused_field_by_field(job: str) -> None:
    """Issue C: changed seed, batch, group size: field, value and mend."""
    assert run(job).exit_code == 0
    result = run(job, "--resume", "--set", "seed=9", "--set", "group_size=4", "--set", "train.hangs=true")
    assert result.exit_code == 2
    lines = result.stderr.splitlines()
    assert "the job has 3 problems:" in lines
    for text in (
        "group_size = 4: the run began with another job, which had 2; set it back to 2, or begin",
        "seed = 9: the run began with another job, which had 0",
        "train.hangs = true: the run began with another job, which left it out; leave it out",
    ):
        assert any(text in line for line in lines), text


def test_inspect_proves_the_books(job: str) -> None:
    assert run(job).exit_code == 0
    found = inspected(job)
    run_id = found.pop("run_id")
    assert len(run_id) == 32
    assert found == {
        "name": "scripted",
        "seed": 0,
        "steps": 2,
        "lives": 1,
        "events": found["events"],
        "lost": 0,
        "incidents": 0,
        "compacted": False,
        "balanced": True,
        "groups": {"admitted": 4, "committed": 4, "filtered": {}, "dropped": {}, "open": {}},
        "samples": {"admitted": 8, "trained": 8, "masked": 0, "filtered": 0, "dropped": 0, "open": 0},
        "checkpoints": [2],
    }
    result = invoke("inspect", str(folder(job)))
    assert "groups   4 admitted = 4 committed + 0 filtered + 0 dropped + 0 open" in result.stdout
    assert result.stdout.splitlines()[-1] == "the books are balanced"


def test_inspect_tells_of_lost_workers(job: str) -> None:
    """Issue E: what died, why, what was done about it and whether that helped, from the record alone."""
    incident = Incident(
        role="rollout",
        workers=(WorkerId("rollout/1"),),
        cause="worker",
        level="worker",
        attempts=1,
        verdict="restored",
        detail="worker rollout/1 is lost: it was killed by SIGKILL\nits last words",
        version=WeightVersion(7),
        seconds=3.25,
    )
    assert run(job).exit_code == 0
    nothing = invoke("inspect", str(folder(job)), "--incidents").stdout
    assert nothing == "no worker was lost\n"

    async def append() -> None:
        site = Site(job_dir=".", run_dir=str(folder(job)), resume=True)
        async with sqlite.open(sqlite.Config(), Host(site=site, payloads=InprocPayloads())) as ledger:
            await ledger.append((incident,))

    anyio.run(append)
    head, line, detail = invoke("inspect", str(folder(job)), "--incidents").stdout.splitlines()
    assert head.split() == ["at", "workers", "cause", "level", "attempts", "verdict", "took"]
    assert line.split() == ["v7", "rollout/1", "worker", "worker", "1", "restored", "3.2", "s"]
    assert detail.strip() == "worker rollout/1 is lost: it was killed by SIGKILL"
    (told,) = json.loads(invoke("inspect", str(folder(job)), "--incidents", "--json").stdout)
    assert msgspec.convert(told, Incident) == incident
    assert inspected(job)["balanced"], "it is in no accounts"
    assert "workers were lost once" in invoke("inspect", str(folder(job))).stdout
    assert run(job, "--resume", "--set", "steps=3").exit_code == 0, "a resume reads past it"


def test_inspect_tells_which_checkpoints_there_are_and_why(job: str) -> None:
    """Issue E: latest, the best, those that await their evaluation; what the record does not know is told of."""
    path = Path(job)
    evaluated = f'\n[evaluation]\nevery = 2\nsize = 2\n[evaluation.prompts]\nkind = "{SCRIPTED}:prompts"\n'
    path.write_text(path.read_text(encoding="utf-8") + evaluated, encoding="utf-8")
    keep = ("--set", "checkpoint.every=1", "--set", "checkpoint.keep_best=1", "--set", "steps=3", "--set", "max_age=0")
    result = run(job, *keep, "--set", "evaluation.every=2")
    assert result.exit_code == 0, result.output
    there = folder(job) / "checkpoints"
    (there / "unknown-step-9").mkdir()
    (there / "step-2").rename(there / "step-7")
    found = json.loads(invoke("inspect", str(folder(job)), "--checkpoints", "--json").stdout)
    assert found == {
        "metric": "eval/reward/mean",
        "mode": "max",
        "latest": 3,
        "best": [3],
        "checkpoints": [
            {"version": 2, "name": "step-2", "state": "missing", "worth": 0.5, "kept": ["last"]},
            {"version": 3, "name": "step-3", "state": "whole", "worth": 0.5, "kept": ["latest", "best"]},
        ],
        "unknown": ["step-7", "unknown-step-9"],
    }
    head, second, third, *unknown = invoke("inspect", str(folder(job)), "--checkpoints").stdout.splitlines()
    assert head.split() == ["checkpoint", "state", "eval/reward/mean", "kept", "as"]
    assert second.split() == ["step-2", "missing", "0.5000", "last"]
    assert third.split() == ["step-3", "whole", "0.5000", "latest,", "best"]
    assert [line.split()[0] for line in unknown] == ["step-7", "unknown-step-9"]


def test_inspect_tells_the_history_of_a_lease(job: str) -> None:
    assert run(job).exit_code == 0
    result = invoke("inspect", str(folder(job)), "--lease", "L1", "--json")
    events = json.loads(result.stdout)
    assert [event["event"] for event in events] == ["admitted", "generating", "graded", "claimed", "committed"]
    assert events[0]["facts"]["prompt"] == "p1"
    assert events[2]["facts"]["samples"][0]["versions"] == [[0, 4]]
    shown = invoke("inspect", str(folder(job)), "--lease", "L1").stdout
    assert "sample 1" in shown
    missing = invoke("inspect", str(folder(job)), "--lease", "L99")
    assert missing.exit_code == 2


def test_inspect_of_a_damaged_record_exits_with_4(job: str) -> None:
    """Issue C: one flipped byte in a ledger is found and named."""
    assert run(job).exit_code == 0
    path = folder(job) / "ledger.sqlite"
    data = bytearray(path.read_bytes())
    at = data.index(b"generating")
    data[at] ^= 1
    path.write_bytes(bytes(data))
    result = invoke("inspect", str(folder(job)))
    assert result.exit_code == 4, result.output
    assert "ledger.sqlite" in result.stderr


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_serves_when_it_is_removed(job: str) -> None:
    """Issue C: one flipped byte in a checkpoint is found and named."""
    assert run(job, "--set", "checkpoint.every=1").exit_code == 0
    path = folder(job) / "checkpoints" / "step-2" / "scripted.json"
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(bytes(data))
    result = invoke("resume", str(folder(job)), "--quiet")
    assert result.exit_code == 2
    assert str(path) in result.stderr
    for file in path.parent.iterdir():
        file.unlink()
    path.parent.rmdir()
    result = invoke("resume", str(folder(job)), "--quiet")
    assert result.exit_code == 0, result.output
    assert "4 admitted = 4 trained" in result.stdout
    assert inspected(job)["lives"] == 2
