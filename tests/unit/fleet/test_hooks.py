"""Hooks: whatever one does at whichever point, the run is the same, everything is given back, and it is told once."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from structlog import get_logger
from structlog.testing import capture_logs

from backends.sim import Config
from backends.sim.launcher import SimLauncher
from backends.sim.virtual_time import run_virtual
from backends.sim.world import open_world
from conductor.conductor import Conductor
from conductor.config import FleetConfig
from conductor.fleet.group import WorkerGroup
from conductor.fleet.hooks import POINTS, Hooks
from conductor.ports import Workloads
from conductor.result import RunResult
from conductor.simulation.life import in_simulation
from conductor.validation import find_problems, site_of
from protocols.aio import open_tasks
from protocols.errors import ConfigError, InvariantError, PortFailed
from protocols.fleet import Vertex
from protocols.incidents import Incident
from protocols.sections import Section
from tests.sim.test_moving import Nodes
from tests.support.runs import run_config
from tests.unit.fleet.test_checking import ranks_on

ROLES = ("policy", "rollout", "episode", "reward")
PATIENCE_S = 3.0


@dataclass
class Watching:
    """Writes down what it is told."""

    told: list[tuple[str, Any]] = field(default_factory=list)

    async def launching(self, role: str, workers: tuple[Vertex, ...]) -> None:
        self.told.append(("launching", role))
        assert [vertex.role for vertex in workers] == [role] * len(workers)

    async def launched(self, role: str, workers: tuple[Vertex, ...]) -> None:
        assert isinstance(workers[0], Vertex), "the workers, and no group that is not active"
        self.told.append(("launched", role))

    async def started(self, group: WorkerGroup) -> None:
        assert await group.missing() == frozenset()
        self.told.append(("started", group.members[0].partition("/")[0]))

    async def failed_over(self, incident: Incident) -> None:
        self.told.append(("failed_over", incident.workers))

    async def stopping(self, role: str, _workers: tuple[Vertex, ...]) -> None:
        self.told.append(("stopping", role))

    async def stopped(self, role: str, _workers: tuple[Vertex, ...]) -> None:
        self.told.append(("stopped", role))


class Failing:
    """Does at one point what it must not, every time."""

    def __init__(self, point: str, how: str) -> None:
        self.calls = 0

        async def fail(*_facts: Any) -> None:
            self.calls += 1
            match how:
                case "raises":
                    raise ValueError("the hook's own")
                case "breaks a rule":
                    raise InvariantError("not ours")
                case "exits":
                    raise SystemExit(3)
                case "hangs":
                    await anyio.sleep_forever()
                case _:
                    raise anyio.get_cancelled_exc_class()

        setattr(self, point, fail)


@dataclass(kw_only=True)
class Lived:
    """What became of a run with hooks."""

    result: RunResult | None = None
    error: Exception | None = None
    placement: Nodes = field(default_factory=lambda: Nodes("a"))
    launcher: SimLauncher | None = None
    seconds: float = 0.0


def live(*hooks: object, refused: str = "", engines: int = 1, **fleet: Any) -> Lived:
    """Run a job, one engine of which dies; or is told that the launcher refuses a worker."""
    lived = Lived()

    async def conduct() -> None:
        options: dict[str, Any] = {"sample": "constant:2.0", "train": "constant:1.0", "publish": "constant:0.1"}
        cfg = in_simulation(run_config(steps=24, batch_groups=1, max_age=1, engines=engines), options)
        cfg = msgspec.structs.replace(cfg, fleet=FleetConfig(answer_s=PATIENCE_S, **fleet))
        async with open_world(Config(**options), site_of(cfg)) as world, open_tasks() as tasks:
            launcher = world.backend.launcher
            assert isinstance(launcher, SimLauncher)
            lived.launcher = launcher
            if refused:
                make = launcher._make

                def refuse(spec: Any, inference: Any) -> Any:
                    if spec.worker_id == refused:
                        raise PortFailed("no such thing")
                    return make(spec, inference)

                launcher._make = refuse

            async def disturb() -> None:
                await anyio.sleep(16)

                launcher.crash("rollout/0", 1.0)

            tasks.start_soon(disturb)
            workloads = Workloads(prompts=world.prompts, ledger=world.ledger, trackers=())
            backend = replace(world.backend, placement=lived.placement)
            try:
                lived.result = await Conductor.run(cfg, backend=backend, workloads=workloads, hooks=hooks)
            except Exception as exc:  # noqa: BLE001 - asked for by the tests
                lived.error = exc
            lived.seconds = anyio.current_time()
            assert await launcher.poll() == {}
            assert lived.placement.held == {}
            tasks.cancel_scope.cancel()

    run_virtual(conduct)
    return lived


def test_a_hook_is_told_of_everything_in_order() -> None:
    watching = Watching()
    lived = live(watching)
    assert lived.result is not None
    opened = [(point, role) for role in ROLES for point in ("launching", "launched")]
    assert watching.told[:8] == opened
    assert watching.told[8:12] == [("started", role) for role in ROLES]
    assert watching.told[12] == ("failed_over", ("rollout/0",))
    closed = [(point, role) for role in reversed(ROLES) for point in ("stopping", "stopped")]
    assert watching.told[13:] == closed


@pytest.mark.parametrize("how", ["raises", "breaks a rule", "exits", "hangs", "cancels itself"])
@pytest.mark.parametrize("point", POINTS)
def test_a_hook_that_fails_changes_nothing(point: str, how: str) -> None:
    """W01: a hook that failed after the group was active left what it held reserved. W07: the verdict stands."""
    watching, failing = Watching(), Failing(point, how)
    lived = live(failing, watching)
    assert lived.result is not None, lived.error
    assert lived.result.steps == 24
    assert failing.calls == (1 if point == "failed_over" else 4)
    assert len(watching.told) == 4 * 5 + 1, "the other hook is told all the same"
    assert lived.seconds < 100 + failing.calls * PATIENCE_S


@pytest.mark.parametrize("point", POINTS)
def test_a_hook_that_fails_does_not_hide_why_a_start_failed(point: str) -> None:
    """W07."""
    watching = Watching()
    lived = live(Failing(point, "raises"), watching, refused="rollout/0")
    assert isinstance(lived.error, PortFailed)
    assert "no such thing" in str(lived.error)
    assert ("stopped", "rollout") in watching.told, "it follows every launching"
    assert ("launched", "rollout") not in watching.told
    assert not any(point == "started" for point, _ in watching.told), "no group is active before all are"


async def test_it_is_told_once_which_hook_failed_where() -> None:
    with capture_logs() as logs:
        hooks = Hooks([Failing("launching", "hangs")], patience_s=2.0, log=get_logger())
        await hooks.tell("launching", "rollout", ())
        await hooks.tell("launching", "rollout", ())
        await hooks.tell("stopped", "rollout", ())
    assert anyio.current_time() == pytest.approx(4.0)
    assert logs == [
        {
            "event": "hook.failed",
            "hook": "Failing",
            "point": "launching",
            "why": "it did not end within 2 s",
            "log_level": "error",
        }
    ]


async def test_who_is_cancelled_while_a_hook_is_told_is_cancelled() -> None:
    hooks = Hooks([Failing("launching", "hangs")], patience_s=60.0, log=get_logger())
    with anyio.move_on_after(1.0) as scope:
        await hooks.tell("launching", "rollout", ())
    assert scope.cancelled_caught


@pytest.mark.real_time
@pytest.mark.parametrize("point", ["launched", "stopping", "stopped"])
async def test_it_is_told_of_a_hook_that_hangs_while_the_workers_end(point: str) -> None:
    """The shield was as long as the hook's own patience, ended before that by a hair, and nobody was told."""
    with capture_logs() as logs:
        hooks = Hooks([Failing(point, "hangs")], patience_s=0.05, log=get_logger())
        async with hooks.around("rollout", tuple), hooks.within("rollout", tuple):
            pass
    assert [(line["event"], line["point"]) for line in logs] == [("hook.failed", point)]


async def test_a_hook_is_told_who_is_ended_by_then() -> None:
    ended: list[tuple[Vertex, ...]] = []

    class Ending:
        async def stopping(self, _role: str, workers: tuple[Vertex, ...]) -> None:
            ended.append(workers)

        stopped = stopping

    members = ranks_on("a")
    hooks = Hooks([Ending()], patience_s=1.0, log=get_logger())
    async with hooks.around("policy", lambda: tuple(members)), hooks.within("policy", lambda: tuple(members)):
        members[:] = ranks_on("b", "c")
    assert ended == [tuple(ranks_on("b", "c"))] * 2


HOOK = """
from pathlib import Path


class Note:
    def __init__(self, path: str) -> None:
        self.path = Path(path)

    async def started(self, group) -> None:
        with self.path.open("a") as file:
            print(*group.members, file=file)

    def stopped(self, role, workers) -> None:
        pass


class Good:
    def __init__(self, path: str) -> None:
        self.path = Path(path)

    started = Note.started
"""


def test_a_hook_is_named_in_the_job(tmp_path: Path) -> None:
    (tmp_path / "hooks.py").write_text(HOOK)
    notes = tmp_path / "notes"
    section = Section(kind=f"{tmp_path}/hooks.py:Good", options={"path": str(notes)})
    assert live(hooks=(section,)).result is not None
    assert notes.read_text().splitlines() == ["policy/0", "rollout/0", "episode/0", "reward/0"]


def test_a_hook_that_cannot_be_called_is_refused_with_the_job(tmp_path: Path) -> None:
    (tmp_path / "hooks.py").write_text(HOOK)
    names = ["hooks.py:Note", "hooks.py:Absent", "hooks.py:Path"]
    cfg = run_config(fleet=FleetConfig(hooks=tuple(Section(kind=name) for name in names)), job_dir=str(tmp_path))
    found = [str(problem) for problem in find_problems(cfg) if problem.field.startswith("fleet.hooks")]
    assert found[0] == "fleet.hooks[0].kind = 'hooks.py:Note': its stopped is no coroutine; write async def stopped"
    assert "fleet.hooks[1].kind = 'hooks.py:Absent': it cannot be imported: AttributeError" in found[1]
    assert "fleet.hooks[2].kind = 'hooks.py:Path': it has none of the methods" in found[2]
    assert len(found) == 3


def test_a_hook_that_refuses_its_options_is_a_problem_of_the_job(tmp_path: Path) -> None:
    (tmp_path / "hooks.py").write_text(HOOK)
    lived = live(hooks=(Section(kind=f"{tmp_path}/hooks.py:Good", options={"channel": 3}),))
    assert isinstance(lived.error, ConfigError)
    assert "fleet.hooks[0]" in str(lived.error)
    assert "unexpected keyword argument 'channel'" in str(lived.error)
