"""A start, disturbed at each of its steps: it fails with the step's name, and leaves nothing."""

from collections.abc import Awaitable, Callable

import anyio
import pytest

from backends.inproc import Config
from backends.inproc import open as open_inproc
from conductor.bounded import bounded_backend
from conductor.config import Deadlines
from conductor.core.waits import Waits
from conductor.fleet.group import WorkerGroup, open_group
from conductor.fleet.reservation import open_reservations
from protocols.aio import clock
from protocols.backend import Backend, LauncherPort, PlacementPort, WorkloadSpec
from protocols.errors import ConductorError, DeadlineExceeded, PortFailed, WorkerLost
from protocols.messages import WorkerId
from protocols.sections import Site
from tests.support.await_probe import enumerate_awaits
from tests.support.hosted import running
from tests.support.port_faults import PortFaults, When, enumerate_port_calls
from tests.unit.fleet.test_group import bundles, rollouts

SITE = Site(job_dir=".")
DEADLINES = Deadlines(start=30.0, abort=5.0)
_UNDO = ("LauncherPort.kill", "PlacementPort.release")


class Refused(PortFailed):
    """The step that was to fail."""


class Started:
    """What a disturbed start left, as the backend itself has it."""

    workers: dict[WorkerId, bool]
    reserved: float


def start(left: Started, *, at_once: bool) -> Callable[[PortFaults], Awaitable[str]]:
    """Return a program that starts two workers and ends them."""

    async def program(faults: PortFaults) -> str:
        async with open_inproc(Config(), SITE) as home:
            seen = Backend(
                placement=faults.wrap(PlacementPort, home.placement),
                launcher=faults.wrap(LauncherPort, home.launcher),
                payloads=home.payloads,
            )
            try:
                return await _start(bounded_backend(seen, DEADLINES, Waits(clock())), at_once=at_once)
            finally:
                with anyio.CancelScope(shield=True):  # noqa: ASYNC100 - only asks, and nothing here waits
                    left.workers = await running(home.launcher)
                    inventory = await home.placement.inventory()
                    left.reserved = sum(node.total.cpus - node.free.cpus for node in inventory.nodes)

    return program


async def _start(backend: Backend, *, at_once: bool) -> str:
    async with (
        open_reservations(bundles(), backend.placement, stop_s=DEADLINES.abort),
        open_group(rollouts(), backend.launcher, SITE, start_s=60.0, stop_s=DEADLINES.abort, at_once=at_once) as group,
    ):
        assert await group.missing() == frozenset()
        return "ran"


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("when", ["before", "after", "hang", "hang_after"])
def test_a_step_that_fails_or_hangs_leaves_nothing(when: When, at_once: bool) -> None:
    """W01, W03: each step of a start has its deadline, and its name in the error; then all is undone."""
    left, places = Started(), 0
    for trial in enumerate_port_calls(start(left, at_once=at_once), when, lambda: Refused("no"), seed=3):
        places += 1
        if trial.site in _UNDO and when in {"before", "hang"}:
            continue  # what nobody is told to end goes on until the backend ends
        assert not any(left.workers.values()), trial.site
        assert left.reserved == 0.0, trial.site
        error = trial.outcome.error
        assert isinstance(error, ConductorError), (trial.site, error)
        if when.startswith("hang") and trial.site not in _UNDO:
            assert isinstance(error, DeadlineExceeded), (trial.site, error)
            assert trial.site.replace("Port", "") in error.what or "launch of rollout" in error.what
    assert places >= 9


def test_a_start_that_is_cancelled_leaves_nothing() -> None:
    """W01, W06: every wait of a start can be cancelled."""
    left, places = Started(), 0
    program = start(left, at_once=True)
    for trial in enumerate_awaits(lambda: program(PortFaults(None, "before", lambda: Refused("no"))), "cancel_scope"):
        places += 1
        assert trial.outcome.cancelled or trial.outcome.value == "ran", trial.site
        if trial.outcome.cancelled and hasattr(left, "workers"):
            assert not any(left.workers.values()), trial.site
            assert left.reserved == 0.0, trial.site
    assert places >= 15


class Frail:
    """A launcher one of whose workers dies while the others are still being launched."""

    def __init__(self, dies: WorkerId, inner: LauncherPort) -> None:
        self._dies = dies
        self._inner = inner

    async def launch(self, spec: WorkloadSpec) -> None:
        if spec.worker_id != self._dies:
            await anyio.sleep_forever()
        await self._inner.launch(spec)
        await self._inner.kill(self._dies)

    async def kill(self, worker_id: WorkerId) -> None:
        await self._inner.kill(worker_id)

    async def poll(self) -> dict[WorkerId, object]:
        return dict(await self._inner.poll())


async def test_a_start_does_not_wait_for_others_when_one_is_dead_already() -> None:
    """W18: liveness is watched during the start too. W14: one fails, and the others, which hang, are ended."""
    async with open_inproc(Config(), SITE) as backend:
        launcher: LauncherPort = Frail(WorkerId("rollout/0"), backend.launcher)  # type: ignore[assignment]
        began = anyio.current_time()
        with pytest.raises(WorkerLost, match="rollout/0"):
            async with open_group(rollouts(), launcher, SITE, start_s=600.0, stop_s=5.0, at_once=True):
                pytest.fail("the group must not start")
        assert anyio.current_time() - began < 5.0
        assert await backend.launcher.poll() == {}


async def test_a_start_that_takes_too_long_names_who_was_not_there() -> None:
    """W03, W15: a worker that is pending for ever has a deadline of its own."""
    async with open_inproc(Config(), SITE) as backend:
        vertices = (*rollouts(1), *rollouts(2, hangs=True)[1:])
        with pytest.raises(DeadlineExceeded, match="launch of rollout/1 did not end within 20 s"):
            async with open_group(vertices, backend.launcher, SITE, start_s=20.0, stop_s=5.0):
                pytest.fail("the group must not start")
        assert await backend.launcher.poll() == {}


async def test_a_member_is_replaced_in_its_place_and_the_others_stay() -> None:
    """Killing one worker changes no other."""
    async with (
        open_inproc(Config(), SITE) as backend,
        open_group(rollouts(), backend.launcher, SITE, start_s=60.0, stop_s=5.0) as group,
    ):
        await backend.launcher.kill(WorkerId("rollout/1"))
        await _replace(group, "rollout/1")
        assert await running(backend.launcher) == {"rollout/0": True, "rollout/1": True}


async def _replace(group: WorkerGroup, member: str) -> None:
    await group.replace((WorkerId(member),))
    assert (await group.look()).losses == {}
