"""The launcher of a simulation: it hosts scripted workloads, and lets them die and come back."""

from typing import Any

import anyio
import pytest

from backends.sim.faults import Faults
from backends.sim.launcher import SimLauncher
from backends.sim.placement import SimPlacement
from protocols.backend import ReserveRequest, Resources, WorkloadSpec
from protocols.errors import InvariantError, UserError, WorkerLost
from protocols.faults import FaultPlan
from protocols.messages import WorkerId
from protocols.sections import Section, Site
from protocols.simulation import Observed
from tests.support.hosted import running
from tests.support.texts import exactly

REWARD, POLICY = WorkerId("reward/0"), WorkerId("policy/0")


class Waits:
    """Answers with its number after a second."""

    made = 0

    def __init__(self) -> None:
        Waits.made += 1
        self.number = Waits.made

    async def grade(self) -> int:
        await anyio.sleep(1)
        return self.number

    train_step = grade


@pytest.fixture
def launcher() -> SimLauncher:
    Waits.made = 0
    return SimLauncher(lambda _spec, _inference: Waits(), Faults(FaultPlan(), Observed()), [])


def spec(worker_id: WorkerId = REWARD, section: str = "reward") -> WorkloadSpec:
    adapter = Section(kind="whatever", options={"is": "ignored"})
    return WorkloadSpec(
        worker_id=worker_id, section=section, adapter=adapter, site=Site(job_dir="/"), reservation_id="r"
    )


async def test_it_hosts_a_role_whatever_the_job_names(launcher: SimLauncher) -> None:
    await launcher.launch(spec())
    assert await launcher.call(REWARD, "grade", ()) == 1
    assert await running(launcher) == {REWARD: True}
    with pytest.raises(InvariantError):
        await launcher.launch(spec())
    with pytest.raises(UserError, match=exactly("a simulation has no workload for [tracker]")):
        await launcher.launch(spec(WorkerId("x/0"), "tracker"))


async def test_kill_ends_the_calls_inside_and_is_idempotent(launcher: SimLauncher) -> None:
    """I03: a caller blocked in a worker that is gone learns it."""

    async def call() -> None:
        with pytest.raises(WorkerLost):
            await launcher.call(REWARD, "grade", ())

    await launcher.launch(spec())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call)
        await anyio.sleep(0.5)
        await launcher.kill(REWARD)
        await launcher.kill(REWARD)
    with pytest.raises(WorkerLost):
        await launcher.call(REWARD, "grade", ())
    assert await launcher.poll() == {}


async def test_a_crashed_worker_comes_back_empty(launcher: SimLauncher) -> None:
    await launcher.launch(spec())
    launcher.crash(REWARD, 10.0)
    assert await running(launcher) == {REWARD: False}
    with pytest.raises(WorkerLost, match="crashed"):
        await launcher.call(REWARD, "grade", ())
    await anyio.sleep(10)
    assert await launcher.call(REWARD, "grade", ()) == 2


async def test_a_crashed_trainer_stays_away(launcher: SimLauncher) -> None:
    """Nobody else knows its parameters: one that came back with others would go on from the wrong ones."""
    await launcher.launch(spec(POLICY, "train"))
    launcher.crash(POLICY, 0.0)
    await anyio.sleep(10_000)
    with pytest.raises(WorkerLost):
        await launcher.call(POLICY, "train_step", ())


async def test_every_call_reaches_a_checkpoint(launcher: SimLauncher) -> None:
    await launcher.launch(spec())
    calls: list[Any] = [
        lambda: launcher.launch(spec(POLICY, "train")),
        lambda: launcher.call(WorkerId("nobody/0"), "grade", ()),
        launcher.poll,
        lambda: launcher.kill(WorkerId("nobody/0")),
    ]
    for call in calls:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await call()
        assert scope.cancelled_caught


async def test_the_placement_has_room_for_everything() -> None:
    placement = SimPlacement()
    before = (await placement.inventory()).nodes[0].free
    for _ in range(2):
        await placement.reserve(ReserveRequest(reservation_id="a", resources=Resources(accelerators=10_000)))
    assert (await placement.inventory()).nodes[0].free.accelerators == before.accelerators - 10_000
    for _ in range(2):
        await placement.release("a")
    assert (await placement.inventory()).nodes[0].free == before
