"""conductor plan, and a run that is launched by an edited plan."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from backends import inproc
from conductor.cli.main import main
from conductor.cli.planning import numbers
from protocols.backend import Backend, Inventory, Node, Resources, WorkloadSpec
from protocols.sections import Site
from tests.unit.cli.test_commands import JOB

pytestmark = pytest.mark.real_time  # the commands start a loop of their own

TOTAL = Resources(cpus=8, accelerators=2, memory_gib=64)
MACHINE = Node(name="local", total=TOTAL, free=TOTAL, device="cuda", cpus=tuple(range(8)))
launched: list[WorkloadSpec] = []


class Placement:
    """Says that this machine is larger than it is, and holds whatever is asked for."""

    async def inventory(self) -> Inventory:
        return Inventory(nodes=(MACHINE,), controller="local")

    async def reserve(self, request: object) -> None:
        """Hold it."""

    async def release(self, reservation_id: str) -> None:
        """Give it back."""


class Launcher:
    """The one of the process, which tells what it was told."""

    def __init__(self, launcher: Any) -> None:
        self._launcher = launcher

    async def launch(self, spec: WorkloadSpec) -> None:
        launched.append(spec)
        await self._launcher.launch(spec)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._launcher, name)


class Large:
    """A backend with two accelerators, over the one of this process."""

    Config = inproc.Config
    check = staticmethod(inproc.check)

    @staticmethod
    @asynccontextmanager
    async def open(cfg: inproc.Config, site: Site) -> AsyncGenerator[Backend]:
        async with inproc.open(cfg, site) as backend:
            yield Backend(placement=Placement(), launcher=Launcher(backend.launcher), payloads=backend.payloads)


FLEET = f"""
[backend]
kind = "{__name__}:Large"

[fleet.environment]
LAYER = "job"

[fleet.roles.rollout]
accelerators = 1
cpus = 1
"""
WRONG = """
[fleet.roles.rollot]
cpus = 1

[fleet.roles.reward]
instances = 64
accelerators = 1

[fleet.roles.policy]
accelerators = 1
devices = [[7]]

[fleet.roles.episode]
instances = 3
per_node = 2

[[fleet.collocate]]
roles = ["reward", "nobody"]
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    launched.clear()
    path = tmp_path / "job.toml"
    path.write_text(JOB.replace("steps = 2", "steps = 2\nengines = 2") + FLEET, encoding="utf-8")
    return path


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_the_plan_is_a_table(job: Path) -> None:
    result = invoke("plan", job)
    assert result.exit_code == 0, result.output
    rollout = next(line for line in result.stdout.splitlines() if "rollout/1" in line)
    assert [cell.strip() for cell in rollout.split("│")[1:-1]] == [
        "rollout/1", "engine tests.unit.cli.scripted:engine", "local", "cuda 1", "2", "rollout/1", "1", "1", "0", "1",
    ]  # fmt: skip
    assert "the controller keeps CPU 0 of local" in result.stdout
    assert "episode calls rollout" in result.stdout
    assert not list(job.parent.glob("runs")), "nothing is written that was not asked for"
    assert launched == []


def test_five_planted_mistakes_are_listed_at_once(job: Path) -> None:
    """Exit code 2, with what is wrong in the job and what the nodes do not have."""
    job.write_text(job.read_text() + WRONG)
    result = invoke("plan", job)
    assert result.exit_code == 2
    assert "the job has 5 problems:" in result.stderr
    for said in (
        "fleet.roles.rollot: no such role",
        "fleet.roles.reward.accelerators = 1: accelerators for 64 instances of 1: 64, of 2 for workers",
        "fleet.roles.policy.devices[0] = [7]: there is no device 7: the largest node has 2",
        "fleet.roles.episode.per_node = 2: 3 instances cannot be divided by it",
        "fleet.collocate[0].roles = 'nobody': the job launches no such role",
    ):
        assert said in result.stderr


def test_what_is_wrong_elsewhere_in_the_job_is_listed_as_well(job: Path) -> None:
    result = invoke("plan", job, "--set", "fleet.roles.rollout.accelerators=9", "--set", "staleness=never")
    assert result.exit_code == 2
    assert "staleness" in result.stderr
    assert "fleet.roles.rollout.accelerators" in result.stderr


def test_json_is_what_the_file_holds(job: Path, tmp_path: Path) -> None:
    result = invoke("plan", job, "--json", "-o", tmp_path / "plan.json")
    assert json.loads(result.stdout) == json.loads((tmp_path / "plan.json").read_text())


def test_a_file_that_cannot_be_written_is_said(job: Path, tmp_path: Path) -> None:
    result = invoke("plan", job, "-o", tmp_path / "none" / "plan.json")
    assert result.exit_code == 2
    assert "plan.json cannot be written: " in result.stderr


def edit(path: Path, name: str, **fields: Any) -> None:
    values = json.loads(path.read_text())
    next(vertex for vertex in values["vertices"] if vertex["name"] == name).update(fields)
    path.write_text(json.dumps(values))


def test_a_run_is_launched_by_the_edited_plan(job: Path, tmp_path: Path) -> None:
    """A rank moved and a CPU set changed reach the launcher as they stand."""
    plan = tmp_path / "plan.json"
    assert invoke("plan", job, "-o", plan).exit_code == 0
    edit(plan, "rollout/0", devices=[1], cpus=[6], ranks={"world": 1, "role": 1, "node": 0, "local": 1})
    edit(plan, "rollout/1", devices=[0], ranks={"world": 0, "role": 0, "node": 0, "local": 0})
    result = invoke("run", job, "--plan", plan, "--run-dir", tmp_path / "run", "--quiet")
    assert result.exit_code == 0, result.stderr
    specs = {spec.worker_id: spec for spec in launched}
    assert (specs["rollout/0"].devices, specs["rollout/0"].cpus) == ((1,), (6,))
    assert specs["rollout/0"].ranks.role == 1
    assert specs["rollout/1"].ranks.role == 0
    assert specs["rollout/1"].environment == {"LAYER": "job"}
    assert json.loads((tmp_path / "run" / "plan.json").read_text()) == json.loads(plan.read_text())


def test_a_run_makes_the_plan_that_plan_prints(job: Path, tmp_path: Path) -> None:
    assert invoke("plan", job, "-o", tmp_path / "plan.json").exit_code == 0
    assert invoke("run", job, "--run-dir", tmp_path / "run", "--quiet").exit_code == 0
    assert (tmp_path / "run" / "plan.json").read_bytes() == (tmp_path / "plan.json").read_bytes()


def test_a_run_refuses_an_edited_plan_with_all_that_is_wrong(job: Path, tmp_path: Path) -> None:
    """Launch accepts nothing that the planner would not have made."""
    plan = tmp_path / "plan.json"
    assert invoke("plan", job, "-o", plan).exit_code == 0
    edit(plan, "rollout/0", devices=[5], cpus=[0])
    edit(plan, "reward/0", environment={"LAYER": "mine"})
    result = invoke("run", job, "--plan", plan, "--run-dir", tmp_path / "run", "--quiet")
    assert result.exit_code == 2
    for said in (
        "rollout/0.devices = [5]: local has no device 5",
        "rollout/0.cpus = [0]: CPU 0 is the controller's",
        "reward/0.environment: the job says otherwise",
    ):
        assert said in result.stderr
    assert launched == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("not json", "--plan = "),
        ("{}", "vertices: is missing"),
        (None, "there is no such file"),
    ],
)
def test_a_file_that_is_no_plan_is_said(job: Path, tmp_path: Path, content: str | None, said: str) -> None:
    plan = tmp_path / "plan.json"
    if content is not None:
        plan.write_text(content)
    result = invoke("run", job, "--plan", plan, "--run-dir", tmp_path / "run")
    assert result.exit_code == 2
    assert said in result.stderr
    assert not (tmp_path / "run").exists()


def test_a_resume_takes_a_plan_too(job: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert invoke("run", job, "--run-dir", run, "--quiet").exit_code == 0
    moved = tmp_path / "moved.json"
    moved.write_bytes((run / "plan.json").read_bytes())
    edit(moved, "reward/0", cpus=[4])
    launched.clear()
    assert invoke("resume", run, "--plan", moved, "--quiet").exit_code == 0
    assert {spec.worker_id: spec.cpus for spec in launched}["reward/0"] == (4,)


def test_numbers_are_drawn_together() -> None:
    assert numbers((0, 1, 2, 5, 7, 8)) == "0-2,5,7-8"
    assert numbers(()) == ""
