"""Roles that call one another, meet and share queues, over every launcher that hosts a user's own."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import pytest

from conductor.config import QueueConfig
from conductor.fleet.attendance import Attendance
from conductor.fleet.group import open_group
from conductor.fleet.roles import RoleDesk, built_in, own
from examples.roles.judges import Judging, Text
from protocols.backend import LauncherPort
from protocols.errors import InvariantError, PortFailed, QueueClosed, UserError, WorkerLost
from protocols.grading import Grade, GraderPort
from protocols.messages import WorkerId
from protocols.roles import Roles
from protocols.sections import Section, Site
from tests.contract.test_calls import request_for
from tests.support import hosted
from tests.support.launchers import ENCODED, INPROC, PROCESSES, RAY, OpenLauncher, chosen
from tests.support.vertices import vertices

SITE = Site(job_dir=str(Path(__file__).parents[2]))
LONG, SHORT = Text(words=("always", "never")), Text(words=("now", "then", "or"))
QUEUES = {"scored": QueueConfig(consumer="archive", size=2)}
ZERO, ONE = WorkerId("judge/0"), WorkerId("judge/1")


class Writing:
    """What a writer is asked."""

    async def best(self, texts: tuple[Text, ...]) -> Text: ...  # type: ignore[empty-body]

    async def worst(self) -> None: ...


class Agreeing:
    """What judges are asked among themselves."""

    async def agree(self, limit: int) -> int: ...  # type: ignore[empty-body]

    async def score(self, text: int) -> float: ...  # type: ignore[empty-body]


class Reading:
    """What an archive is asked."""

    async def read(self) -> tuple[Text, ...]: ...  # type: ignore[empty-body]


@pytest.fixture(params=[INPROC, ENCODED, PROCESSES, RAY])
def open_one(request: pytest.FixtureRequest) -> OpenLauncher:
    return chosen(request)


class Stage:
    """Workers on the launcher under test, and the desk between them."""

    def __init__(self, launcher: LauncherPort, desk: RoleDesk) -> None:
        self.launcher = launcher
        self.desk = desk
        self.roles = Roles(desk, WorkerId("controller"))
        self.attendance: dict[str, Attendance] = {}


@asynccontextmanager
async def open_stage(open_one: OpenLauncher) -> AsyncGenerator[Stage]:
    """Launch two judges, a writer, an archive and a grader that gives each sample its index."""
    desk = RoleDesk(QUEUES, patience_s=5.0)
    roles = {"judge": ("Judge", 2), "writer": ("Writer", 1), "archive": ("Archive", 1)}
    async with open_one() as launcher, AsyncExitStack() as stack:
        stack.enter_context(desk.open())
        await launcher.serve_roles(desk)
        staged = Stage(launcher, desk)
        members = {
            name: vertices(
                name, "role", [Section(kind="object", options={"make": f"examples.roles.judges:{kind}"})] * n
            )
            for name, (kind, n) in roles.items()
        }
        members["reward"] = vertices("reward", "reward", [Section(kind=hosted.KIND)])
        for name, group in members.items():
            send = own(launcher.call) if name in roles else built_in(GraderPort, launcher.call)
            staged.attendance[name] = Attendance()
            desk.add(name, tuple(one.name for one in group), send, staged.attendance[name])
            await stack.enter_async_context(open_group(group, launcher, SITE, start_s=60.0, stop_s=10.0, at_once=True))
        yield staged


async def test_a_worker_calls_the_workers_of_another_role(open_one: OpenLauncher) -> None:
    async with open_stage(open_one) as stage:
        assert await stage.roles.of("writer", Writing).one.best((SHORT, LONG)) == LONG


async def test_a_role_of_the_jobs_own_can_be_called_as_well(open_one: OpenLauncher) -> None:
    async with open_stage(open_one) as stage:
        report = await stage.roles.of("reward", GraderPort).first.grade(request_for("L1", 0, 2))
        assert report.grades == (Grade(reward=0.0), Grade(reward=2.0))


async def test_all_are_called_and_each_with_its_part(open_one: OpenLauncher) -> None:
    async with open_stage(open_one) as stage:
        judges = stage.roles.of("judge", Judging)
        assert await judges.scattered("score", [LONG, SHORT]) == {ZERO: 1.0, ONE: 1 / 3}
        with pytest.raises(InvariantError, match="in 1 parts over 2 workers"):
            await judges.scattered("score", [LONG])


async def test_workers_of_a_role_meet_and_take_over_what_the_first_has(open_one: OpenLauncher) -> None:
    """A rendezvous, a barrier and a broadcast, from within the workers."""
    async with open_stage(open_one) as stage:
        assert await stage.roles.of("judge", Agreeing).scattered("agree", [3, 9]) == {ZERO: 3, ONE: 3}


async def test_a_call_that_nobody_can_answer_is_refused_and_harms_nobody(open_one: OpenLauncher) -> None:
    """W17: one bad message cost all that came with it."""
    async with open_stage(open_one) as stage:
        writers = stage.roles.of("writer", Writing)
        with pytest.raises(UserError, match="writer/0 has no public coroutine method 'worst'"):
            await writers.one.worst()
        with pytest.raises(UserError, match=r"judge/0.score does not take that: Expected .object., got .int."):
            await stage.roles.of("judge", Agreeing).first.score(3)
        with pytest.raises(UserError, match="no role 'juge' can be called; there are judge, writer"):
            await stage.roles.of("juge", Judging).one.score(LONG)
        with pytest.raises(UserError, match="the role judge has no worker judge/7"):
            await stage.roles.of("judge", Judging).at(WorkerId("judge/7")).score(LONG)
        with pytest.raises(PortFailed, match="ZeroDivisionError"):
            await stage.roles.of("judge", Judging).first.score(Text(words=()))
        assert await writers.one.best((LONG,)) == LONG


async def test_a_worker_that_is_gone_is_told_by_name(open_one: OpenLauncher) -> None:
    async with open_stage(open_one) as stage:
        await stage.launcher.kill(ONE)
        with pytest.raises(WorkerLost, match="judge/1"):
            await stage.roles.of("judge", Judging).all("score", LONG)


async def test_a_queue_brings_everything_in_order_until_it_is_closed(open_one: OpenLauncher) -> None:
    async with open_stage(open_one) as stage:
        read: list[tuple[Text, ...]] = []

        async def reads() -> None:
            read.append(await stage.roles.of("archive", Reading).one.read())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(reads, name="archive")
            for text in (LONG, SHORT, LONG, SHORT, LONG):
                await stage.roles.of("judge", Judging).one.score(text)
            await stage.roles.queue("scored", Text).close()
        assert read == [(LONG, SHORT, LONG, SHORT, LONG)]
        with pytest.raises(QueueClosed, match="the queue scored is closed"):
            await stage.roles.queue("scored", Text).put(LONG)


async def test_a_full_queue_is_waited_at_until_nobody_is_there_to_take(open_one: OpenLauncher) -> None:
    """I03: what waits for a worker that is gone must be told so."""
    async with open_stage(open_one) as stage:
        queue = stage.roles.queue("scored", Text)
        for text in (LONG, SHORT):
            await queue.put(text)
        failures: list[WorkerLost] = []

        async def puts() -> None:
            with pytest.raises(WorkerLost) as caught:
                await queue.put(LONG)
            failures.append(caught.value)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(puts, name="put")
            await anyio.wait_all_tasks_blocked()
            assert failures == [], "it waits while the queue is full"
            stage.attendance["archive"].leave(WorkerId("archive/0"))
        assert failures[0].worker == "archive/0"
        stage.attendance["archive"].come_back(WorkerId("archive/0"))
        await queue.close()
        assert await stage.roles.of("archive", Reading).one.read() == (LONG, SHORT), "its successor finds what is left"


async def test_a_queue_that_the_job_does_not_name_is_refused(open_one: OpenLauncher) -> None:
    async with open_stage(open_one) as stage:
        with pytest.raises(UserError, match="the job has no queue 'rows'"):
            await stage.roles.queue("rows", Text).put(LONG)
