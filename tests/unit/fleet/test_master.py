"""The master of a role: told of its workers, asked first, within the budget; whatever it does wrong, others decide."""

from collections.abc import Callable
from dataclasses import replace
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
from conductor.config import FleetConfig, RoleConfig
from conductor.core.failover import Raise, Resize, Restart, Situation
from conductor.fleet.failover import Failover
from conductor.fleet.group import open_group
from conductor.fleet.master import Master
from conductor.inspection import inspect
from conductor.ports import Workloads
from conductor.result import RunResult
from conductor.simulation.life import in_simulation
from conductor.validation import find_problems, site_of
from protocols.aio import open_tasks
from protocols.backend import LauncherPort, Resources
from protocols.errors import BudgetExhausted, ConductorError, PortFailed
from protocols.fleet import PlannedRole, Restarts
from protocols.incidents import Incident
from protocols.ledger import LedgerEvent, Record
from protocols.messages import WorkerId
from protocols.sections import Section, Site
from tests.sim.test_moving import Nodes
from tests.support.runs import run_config
from tests.unit.fleet.test_failover import LAUNCH_S, A, B, Fleet, Run, until
from tests.unit.fleet.test_group import rollouts

PATIENCE_S = 4.0


class User:
    """A master that decides what it was told to, and writes down what it is told."""

    def __init__(self, decide: Callable[[Situation], Any]) -> None:
        self.told: list[tuple[str, WorkerId]] = []
        self.asked: list[Situation] = []
        self._decide = decide

    async def came(self, worker: WorkerId) -> None:
        self.told.append(("came", worker))

    async def went(self, worker: WorkerId, why: str) -> None:
        assert why
        self.told.append(("went", worker))

    async def claim(self, situation: Situation) -> Any:
        self.asked.append(situation)
        decision = self._decide(situation)
        if decision == "hang":
            await anyio.sleep_forever()
        if isinstance(decision, BaseException):
            raise decision
        return decision


async def looked_after(
    user: object, *, crashes: int = 1, holds_state: bool = False, worker: int = 3
) -> tuple[Fleet, Run, ConductorError | None]:
    """Lose a worker some times; returns what came of it."""
    fleet, run = Fleet(), Run()
    launcher: LauncherPort = fleet  # type: ignore[assignment]
    role = PlannedRole(
        name="rollout", instances=2, resources=Resources(), strategy="pack", restarts=Restarts(worker=worker)
    )
    failures: list[ConductorError] = []
    async with open_group(rollouts(), launcher, Site(job_dir="/"), start_s=60.0, stop_s=5.0, at_once=True) as group:
        fleet.launches.clear()
        failover = Failover(role, group, holds_state=holds_state)
        failover.master = Master("rollout", user, patience_s=PATIENCE_S, log=get_logger())

        async def tend() -> None:
            try:
                await failover.run(run.journal)
            except ConductorError as exc:
                failures.append(exc)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tend)
            await anyio.wait_all_tasks_blocked()
            for number in range(crashes):
                fleet.crash(B)
                await until(lambda number=number: len(run.incidents) > number or bool(failures))
            tasks.cancel_scope.cancel()
    return fleet, run, failures[0] if failures else None


async def test_it_is_told_of_coming_and_going_and_decides() -> None:
    user = User(lambda _: Restart(7.0, role=True))
    fleet, run, failure = await looked_after(user)
    assert failure is None
    assert user.told == [("came", A), ("came", B), ("went", B), ("came", A), ("came", B)]
    assert fleet.launches == [A, B], "the default policy would have launched one of them"
    assert (run.incidents[0].level, run.incidents[0].verdict) == ("role", "restored")
    assert run.incidents[0].seconds >= 7.0
    assert dict(user.asked[0].lost) == {B: {"worker": 1}}


async def test_what_it_declines_the_default_policy_decides() -> None:
    fleet, run, failure = await looked_after(User(lambda _: None))
    assert failure is None
    assert fleet.launches == [B]
    assert run.incidents[0].level == "worker"


async def test_it_may_end_the_job() -> None:
    _, run, failure = await looked_after(User(lambda _: Raise(PortFailed("this role is not worth it"))))
    assert isinstance(failure, PortFailed)
    assert run.incidents[0].verdict == "given_up"
    assert "not worth it" in run.incidents[0].detail


@pytest.mark.parametrize(
    ("decision", "why"),
    [
        (ValueError("its own"), "ValueError: its own"),
        (SystemExit(2), "SystemExit: 2"),
        ("hang", "it did not end within 4 s; it is not called any more"),
        ("restart it", "str is no decision: Restart, Resize, Raise, or None"),
        (Restart(-1.0), "a pause of -1 s is none from 0 to 30"),
        (Restart(1e9), "a pause of 1e+09 s is none from 0 to 30"),
        (Raise(ValueError("x")), "ValueError is no ConductorError"),  # type: ignore[arg-type]
        (Resize(), "the role cannot go on with fewer"),
    ],
    ids=["raises", "exits", "hangs", "nonsense", "before now", "for ever", "a foreign error", "fewer"],
)
async def test_what_it_does_wrong_is_told_once_and_the_default_policy_decides(decision: Any, why: str) -> None:
    with capture_logs() as logs:
        fleet, run, failure = await looked_after(User(lambda _: decision), crashes=2)
    assert failure is None
    assert fleet.launches == [B, B]
    assert [one.verdict for one in run.incidents] == ["restored"] * 2
    told = [line for line in logs if line["event"] == "master.failed"]
    assert [(one["role"], one["point"], one["why"]) for one in told] == [("rollout", "claim", why)]


async def test_it_has_no_more_budget_than_its_role() -> None:
    """A master that always starts again would keep a run going that comes to nothing."""
    user = User(lambda _: Restart(0.0))
    _, run, failure = await looked_after(user, crashes=9, worker=2)
    assert isinstance(failure, BudgetExhausted)
    assert [one.level for one in run.incidents] == ["worker", "worker", "role", "job"]
    assert len(user.asked) == 2


class Hanging(User):
    """Hangs wherever it is told, and declines to decide."""

    def __init__(self) -> None:
        super().__init__(lambda _: None)

    async def came(self, worker: WorkerId) -> None:
        await super().came(worker)
        await anyio.sleep_forever()

    async def went(self, worker: WorkerId, why: str) -> None:
        await super().went(worker, why)
        await anyio.sleep_forever()


async def test_one_that_hangs_is_left_alone_and_failovers_do_not_wait_for_it() -> None:
    """With 64 engines nobody was brought back for 64 times the patience, and no notice was heeded."""
    user = Hanging()
    with capture_logs() as logs:
        fleet, run, failure = await looked_after(user, crashes=3)
    assert failure is None
    assert fleet.launches == [B] * 3
    assert user.told == [("came", A), ("went", B)], "each method that hangs is called once"
    assert len(user.asked) == 3, "one that does not is called on"
    took = [one.seconds for one in run.incidents]
    assert took[0] == pytest.approx(PATIENCE_S + LAUNCH_S), "a claim waits for what is told before it, and no longer"
    assert max(took[1:]) < LAUNCH_S + 1.0
    told = [line["point"] for line in logs if line["event"] == "master.failed"]
    assert told == ["came", "went"]


async def test_it_is_told_who_is_ended_for_good_and_who_joins() -> None:
    user, run = User(lambda _: None), Run()
    launcher: LauncherPort = Fleet()  # type: ignore[assignment]
    role = PlannedRole(name="rollout", instances=2, resources=Resources(), strategy="pack", restarts=Restarts())
    one, two = rollouts()
    async with open_group([one, two], launcher, Site(job_dir="/"), start_s=60.0, stop_s=5.0, at_once=True) as group:
        failover = Failover(role, group)
        failover.master = Master("rollout", user, patience_s=PATIENCE_S, log=get_logger())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(failover.run, run.journal)
            await failover.shrink([one])
            await failover.grow([one, two])
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
    assert user.told == [("came", A), ("came", B), ("went", B), ("came", B)]


async def test_who_only_listens_keeps_nobody_waiting() -> None:
    class Listening:
        async def went(self, _worker: WorkerId, _why: str) -> None:
            await anyio.sleep_forever()

    _, run, failure = await looked_after(Listening())
    assert failure is None
    assert run.incidents[0].seconds == pytest.approx(LAUNCH_S)


async def test_it_is_not_told_again_and_again_where_only_the_words_differ() -> None:
    numbers = iter(range(9))
    with capture_logs() as logs:
        _, _, failure = await looked_after(User(lambda _: ValueError(f"try {next(numbers)}")), crashes=3)
    assert failure is None
    assert [line["why"] for line in logs if line["event"] == "master.failed"] == ["ValueError: try 0"]


async def test_it_cannot_give_away_what_was_trained() -> None:
    user = User(lambda _: Restart(0.0, role=True))
    fleet, _, failure = await looked_after(user, holds_state=True)
    assert failure is None
    assert len(user.asked) == 1
    assert fleet.launches == [B], "to launch all anew would lose the rest"


async def test_a_master_without_methods_decides_nothing() -> None:
    fleet, _, failure = await looked_after(object())
    assert failure is None
    assert fleet.launches == [B]


FRUGAL = """
from conductor.core.failover import Resize


class Frugal:
    def __init__(self, least: int) -> None:
        self.least = least

    async def claim(self, situation):
        return Resize() if situation.left >= self.least else None
"""


def live(folder: Path, *, engines: int, crashes: int, **options: Any) -> tuple[RunResult, list[Incident], int]:
    """Run a simulated job whose engines die one after the other; returns what is held of theirs at the end as well."""
    (folder / "masters.py").write_text(FRUGAL)

    async def conduct() -> tuple[RunResult, tuple[LedgerEvent, ...], int]:
        world_options: dict[str, Any] = {"sample": "constant:2.0", "train": "constant:1.0", "publish": "constant:0.1"}
        cfg = in_simulation(run_config(steps=40, batch_groups=2, max_age=1, engines=engines), world_options)
        master = Section(kind=f"{folder}/masters.py:Frugal", options=options)
        fleet = FleetConfig(roles={"rollout": RoleConfig(master=master, accelerators=1)})
        cfg = msgspec.structs.replace(cfg, fleet=fleet)
        nodes = Nodes("a")
        async with open_world(Config(**world_options), site_of(cfg)) as world, open_tasks() as tasks:
            launcher = world.backend.launcher
            assert isinstance(launcher, SimLauncher)
            held: list[int] = []

            async def disturb() -> None:
                for number in range(crashes):
                    await anyio.sleep(12)
                    launcher.crash(f"rollout/{number}", 1.0)
                await anyio.sleep(9)
                held.append(sum(name.startswith("rollout") for name in nodes.held))

            tasks.start_soon(disturb)
            workloads = Workloads(prompts=world.prompts, ledger=world.ledger, trackers=())
            backend = replace(world.backend, placement=nodes)
            result = await Conductor.run(cfg, backend=backend, workloads=workloads)
            assert world.observed.unstopped == []
            return result, await world.record(), held[0]

    result, events, held = run_virtual(conduct)
    assert inspect(Record(events=events, lost=0)).balanced
    return result, [one for one in events if isinstance(one, Incident)], held


def test_a_run_goes_on_without_the_engines_that_its_master_lets_go(tmp_path: Path) -> None:
    """Decisions are Restart, Resize and Raise: an engine less may be worth more than the wait for a new one."""
    result, incidents, held = live(tmp_path, engines=3, crashes=2, least=2)
    assert result.steps == 40
    assert [(one.verdict, one.level, one.attempts) for one in incidents] == [
        ("resized", "role", 0),
        ("restored", "worker", 1),
    ]
    assert incidents[0].detail.endswith("rollout goes on with 2")
    assert held == 2, "what it held is given back"


def test_the_last_engine_is_never_let_go(tmp_path: Path) -> None:
    result, incidents, held = live(tmp_path, engines=1, crashes=1, least=0)
    assert result.steps == 40
    assert [one.verdict for one in incidents] == ["restored"]
    assert held == 1


def test_a_master_that_cannot_be_called_is_refused_with_the_job(tmp_path: Path) -> None:
    (tmp_path / "masters.py").write_text(FRUGAL)
    roles = {"rollout": RoleConfig(master=Section(kind="masters.py:Frugl"))}
    cfg = run_config(fleet=FleetConfig(roles=roles), job_dir=str(tmp_path))
    (found,) = [problem for problem in find_problems(cfg) if "master" in problem.field]
    assert found.field == "fleet.roles.rollout.master.kind"
    assert "no attribute 'Frugl'" in found.why
