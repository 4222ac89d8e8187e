"""What every launcher keeps to."""

import traceback
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path

import anyio
import pytest

from protocols.backend import WorkloadSpec
from protocols.errors import Infeasible, InvariantError, PortFailed, UserError, WorkerLost
from protocols.grading import Grade, GradeReport, GradeRequest
from protocols.messages import LeaseId, PayloadRef, WorkerId
from protocols.prompts import Prompt, TextPrompt
from protocols.sections import Section, Site
from tests.support import hosted
from tests.support.hosted import running
from tests.support.launchers import ENCODED, INPROC, PROCESSES, RAY, OpenLauncher, chosen

Opened = Callable[[], list[str]]
MakeSpec = Callable[..., WorkloadSpec]

REWARD = WorkerId("reward/0")
REQUEST = GradeRequest(
    lease_id=LeaseId("L3"),
    attempt=1,
    prompt=Prompt(position=0, content=TextPrompt(text="p")),
    payload=PayloadRef(owner="p.1/L3/1/", key="group"),
    samples=(0, 2),
)
REPORT = GradeReport(lease_id=LeaseId("L3"), attempt=1, grades=(Grade(reward=0.0), Grade(reward=2.0)))


@pytest.fixture(params=[INPROC, ENCODED, PROCESSES, RAY])
def open_backend_launcher(request: pytest.FixtureRequest) -> OpenLauncher:
    return chosen(request)


@pytest.fixture(autouse=True)
def _nothing_is_left(opened: Opened) -> Generator[None]:
    yield
    assert opened() == []


@pytest.fixture
def spec(tmp_path: Path) -> MakeSpec:
    return partial(_spec, tmp_path)


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    """Say which workloads are open."""
    return partial(hosted.open_in, tmp_path)


def _spec(folder: Path, worker_id: WorkerId = REWARD, kind: str = hosted.KIND, **options: object) -> WorkloadSpec:
    return WorkloadSpec(
        worker_id=worker_id,
        section="reward",
        adapter=Section(kind=kind, options={"name": worker_id, "folder": str(folder), **options}),
        site=Site(job_dir="/"),
        reservation_id=worker_id,
    )


async def test_a_launched_workload_answers_calls(
    open_backend_launcher: OpenLauncher, spec: MakeSpec, opened: Opened
) -> None:
    async with open_backend_launcher() as launcher:
        await launcher.launch(spec())
        assert opened() == [REWARD], "it is ready when launch returns"
        assert await launcher.call(REWARD, "grade", (REQUEST,)) == REPORT
        assert await running(launcher) == {REWARD: True}


async def test_the_end_of_the_launcher_ends_its_workloads(
    open_backend_launcher: OpenLauncher, spec: MakeSpec, opened: Opened
) -> None:
    """I75: nothing that a run started is alive after it, whatever ended it."""

    async def run() -> None:
        async with open_backend_launcher() as launcher:
            await launcher.launch(spec())
            await launcher.launch(spec(WorkerId("reward/1")))
            raise KeyError("the run failed")

    with pytest.raises(KeyError, match="the run failed"):
        await run()
    assert opened() == []


async def test_kill_closes_and_is_idempotent(
    open_backend_launcher: OpenLauncher, spec: MakeSpec, opened: Opened
) -> None:
    async with open_backend_launcher() as launcher:
        await launcher.launch(spec())
        for _ in range(2):
            await launcher.kill(REWARD)
            assert opened() == []
            assert await launcher.poll() == {}
        await launcher.kill(WorkerId("of a dead run"))
        with pytest.raises(WorkerLost):
            await launcher.call(REWARD, "grade", (REQUEST,))
        await launcher.launch(spec())
        assert await launcher.call(REWARD, "grade", (REQUEST,)) == REPORT, "the id is free again"


async def test_an_unknown_worker_is_lost(open_backend_launcher: OpenLauncher) -> None:
    async with open_backend_launcher() as launcher:
        with pytest.raises(WorkerLost, match="nobody/0"):
            await launcher.call(WorkerId("nobody/0"), "grade", (REQUEST,))


async def test_one_id_is_launched_once(open_backend_launcher: OpenLauncher, spec: MakeSpec) -> None:
    async with open_backend_launcher() as launcher:
        await launcher.launch(spec())
        with pytest.raises(InvariantError):
            await launcher.launch(spec())
        assert await launcher.call(REWARD, "grade", (REQUEST,)) == REPORT


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("no_such_kind", {}),
        ("no.such.module:Adapter", {}),
        (hosted.KIND, {"unknown": 1}),
        (hosted.KIND, {"opening": "sideways"}),
    ],
)
async def test_wrong_options_are_the_users_error(
    open_backend_launcher: OpenLauncher, kind: str, options: dict[str, object], spec: MakeSpec
) -> None:
    async with open_backend_launcher() as launcher:
        with pytest.raises(UserError, match="reward"):
            await launcher.launch(spec(kind=kind, **options))
        assert await launcher.poll() == {}


async def test_a_workload_that_cannot_be_opened_leaves_nothing(
    open_backend_launcher: OpenLauncher, spec: MakeSpec
) -> None:
    """W01, W18: a failed start is told at once, as what it is, and its id is free again."""
    async with open_backend_launcher() as launcher:
        with pytest.raises(Infeasible, match="opening"):
            await launcher.launch(spec(opening="refused"))
        with pytest.raises(PortFailed, match="while opening") as failed:
            await launcher.launch(spec(opening="bug"))
        told = "".join(traceback.format_exception(failed.value))
        assert 'raise Bug("while opening")' in told, "with the user's own traceback"
        assert await launcher.poll() == {}
        await launcher.launch(spec())


async def test_a_cancelled_launch_leaves_nothing(
    open_backend_launcher: OpenLauncher, spec: MakeSpec, opened: Opened
) -> None:
    """W15: whoever stops waiting for a start must not leave the start behind."""
    async with open_backend_launcher() as launcher:
        with anyio.move_on_after(5) as scope:
            await launcher.launch(spec(opening="hangs"))
        assert scope.cancelled_caught
        await launcher.kill(REWARD)
        assert opened() == []
        assert await launcher.poll() == {}


async def test_kill_ends_a_launch_that_still_waits(
    open_backend_launcher: OpenLauncher, spec: MakeSpec, opened: Opened
) -> None:
    async with open_backend_launcher() as launcher, anyio.create_task_group() as tasks:

        async def start() -> None:
            with pytest.raises(PortFailed):
                await launcher.launch(spec(opening="hangs"))

        tasks.start_soon(start)
        await anyio.wait_all_tasks_blocked()
        await launcher.kill(REWARD)
        assert opened() == []


async def test_a_refusal_reaches_the_caller_as_it_is(open_backend_launcher: OpenLauncher, spec: MakeSpec) -> None:
    async with open_backend_launcher() as launcher:
        await launcher.launch(spec(call="refused"))
        with pytest.raises(Infeasible) as refused:
            await launcher.call(REWARD, "grade", (REQUEST,))
        assert (refused.value.what, refused.value.asked, refused.value.available) == ("grading", 2, 1)
        assert await running(launcher) == {REWARD: True}


async def test_kill_ends_the_calls_that_are_inside(open_backend_launcher: OpenLauncher, spec: MakeSpec) -> None:
    """I03, I21: a caller blocked in a worker that is gone learns it; nothing of the worker runs on."""
    async with open_backend_launcher() as launcher, anyio.create_task_group() as tasks:
        await launcher.launch(spec(call="hangs"))

        async def call() -> None:
            with pytest.raises(WorkerLost):
                await launcher.call(REWARD, "grade", (REQUEST,))

        tasks.start_soon(call)
        tasks.start_soon(call)
        await anyio.wait_all_tasks_blocked()
        await launcher.kill(REWARD)


async def test_cancelling_a_call_leaves_the_worker_alone(open_backend_launcher: OpenLauncher, spec: MakeSpec) -> None:
    async with open_backend_launcher() as launcher:
        await launcher.launch(spec(call="hangs"))
        with anyio.move_on_after(1) as scope:
            await launcher.call(REWARD, "grade", (REQUEST,))
        assert scope.cancelled_caught
        assert await running(launcher) == {REWARD: True}


async def test_a_worker_that_dies_is_lost_with_its_cause(open_backend_launcher: OpenLauncher, spec: MakeSpec) -> None:
    """I03, I04: a dead worker is seen, by those who wait for it and by those who ask."""
    async with open_backend_launcher() as launcher:
        await launcher.launch(spec(running="dies", call="hangs"))
        with pytest.raises(WorkerLost, match="Bug: while running") as lost, anyio.fail_after(5):
            await launcher.call(REWARD, "grade", (REQUEST,))
        assert lost.value.__cause__ is not None
        assert await running(launcher) == {REWARD: False}
        with pytest.raises(WorkerLost):
            await launcher.call(REWARD, "grade", (REQUEST,))
        await launcher.kill(REWARD)
        assert await launcher.poll() == {}


@pytest.mark.parametrize("closing", ["bug", "hangs"])
async def test_kill_is_bounded_whatever_closing_does(
    open_backend_launcher: OpenLauncher, closing: str, spec: MakeSpec
) -> None:
    """W07, W14: a teardown that fails or hangs replaces nothing and holds nobody up."""
    async with open_backend_launcher() as launcher:
        await launcher.launch(spec(closing=closing))
        with anyio.fail_after(60):
            await launcher.kill(REWARD)
        assert await launcher.poll() == {}


async def test_every_call_reaches_a_checkpoint(open_backend_launcher: OpenLauncher, spec: MakeSpec) -> None:
    async with open_backend_launcher() as launcher:
        await launcher.launch(spec())
        calls = [
            lambda: launcher.launch(spec(WorkerId("reward/1"))),
            lambda: launcher.call(REWARD, "grade", (REQUEST,)),
            lambda: launcher.call(WorkerId("nobody/0"), "grade", (REQUEST,)),
            launcher.poll,
            lambda: launcher.kill(WorkerId("nobody/0")),
        ]
        for call in calls:
            with anyio.CancelScope() as scope:
                scope.cancel()
                await call()
            assert scope.cancelled_caught
