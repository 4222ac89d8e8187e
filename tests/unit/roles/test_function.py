"""A function that runs beside the job: started, ended, failing, and calling others."""

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from backends import inproc
from backends.inproc.payloads import InprocPayloads
from backends.roles import function
from protocols.adapters import Host
from protocols.backend import LauncherPort, WorkloadSpec
from protocols.errors import ConductorError, PortFailed, Transient
from protocols.messages import WorkerId
from protocols.sections import Section, Site
from tests.support.hosted import running

FEED = WorkerId("feed/0")

SOURCE = """
import asyncio
import anyio
from protocols.errors import Transient

told = []

async def feed(host, *, word="hello"):
    told.append(f"{word} from rank {host.ranks}")
    try:
        await anyio.sleep_forever()
    finally:
        told.append("ended")

async def done(host):
    told.append("done")

async def bug(host):
    await anyio.sleep(1)
    raise ValueError("no more prompts")

async def late(host):
    await anyio.sleep(1)
    raise Transient("try again")

async def leaks(host):
    await anyio.sleep(1)
    raise asyncio.CancelledError

async def leaves(host):
    await anyio.sleep(1)
    raise SystemExit(3)

def plain(host):
    pass
"""


@pytest.fixture
def named(tmp_path: Path) -> Callable[[str], str]:
    """Return how a function of the user's file is named."""
    path = tmp_path / "feed.py"
    path.write_text(SOURCE)
    return lambda name: f"{path}:{name}"


def told(named: Callable[[str], str]) -> list[str]:
    return function.find_function(named("feed"), "/").__globals__["told"]


def spec(name: str, **options: object) -> WorkloadSpec:
    return WorkloadSpec(
        worker_id=FEED,
        section="role",
        adapter=Section(kind="function", options={"function": name, "options": options}),
        site=Site(job_dir="/"),
        reservation_id=FEED,
    )


async def test_it_runs_as_long_as_its_worker_does(named: Callable[[str], str]) -> None:
    """I75: what a run starts is not alive after it."""
    async with inproc.open(inproc.Config(), Site(job_dir="/")) as backend:
        await backend.launcher.launch(spec(named("feed"), word="ho"))
        await anyio.sleep(1)
        assert told(named) == ["ho from rank None"]
        assert await running(backend.launcher) == {FEED: True}
        await backend.launcher.kill(FEED)
        assert told(named)[-1] == "ended"


async def test_one_that_is_done_keeps_its_worker(named: Callable[[str], str]) -> None:
    """A worker that ends would be launched again, and the function begin anew."""
    async with inproc.open(inproc.Config(), Site(job_dir="/")) as backend:
        await backend.launcher.launch(spec(named("done")))
        await anyio.sleep(60)
        assert told(named) == ["done"]
        assert await running(backend.launcher) == {FEED: True}


async def cause(launcher: LauncherPort) -> str:
    with anyio.fail_after(60):
        while (found := (await launcher.poll())[FEED].cause) is None:  # noqa: ASYNC110 - of virtual time
            await anyio.sleep(0.5)
    return found


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("bug", "raised ValueError: no more prompts"),
        ("late", "try again"),
        ("leaks", "cancelled itself"),
        ("leaves", "raised SystemExit: 3"),
    ],
)
async def test_one_that_fails_takes_its_worker_with_it_and_says_why(
    named: Callable[[str], str], name: str, says: str
) -> None:
    """W14: what has died must not look as if it ran; whoever looks after the role brings it back."""
    async with inproc.open(inproc.Config(), Site(job_dir="/")) as backend:
        await backend.launcher.launch(spec(named(name)))
        assert says in await cause(backend.launcher)


async def test_the_kind_of_its_error_is_kept(named: Callable[[str], str]) -> None:
    host = Host(site=Site(job_dir="/"), payloads=InprocPayloads())
    for name, kind in (("late", Transient), ("bug", PortFailed)):
        with pytest.RaisesGroup(pytest.RaisesExc(kind)) as raised:
            async with function.open(function.Config(function=named(name)), host):
                await anyio.sleep_forever()
        assert all(isinstance(one, ConductorError) for one in raised.value.exceptions)


@pytest.mark.parametrize(("name", "why"), [("nothing", "has no function"), ("plain", "async def")])
def test_one_that_cannot_run_is_refused_before_anything_starts(
    named: Callable[[str], str], name: str, why: str
) -> None:
    (problem,) = function.check(function.Config(function=named(name)), Site(job_dir="/"))
    assert why in str(problem)
    assert problem.field == "role.options.function"


def test_one_that_can_is_not(named: Callable[[str], str]) -> None:
    assert function.check(function.Config(function=named("feed")), Site(job_dir="/")) == ()
