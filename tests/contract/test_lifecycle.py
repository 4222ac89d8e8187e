"""What the members of one role keep to, over every launcher."""

from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec
import pytest

from conductor.fleet.group import open_group
from protocols.backend import LauncherPort
from protocols.errors import ConductorError
from protocols.fleet import Vertex
from protocols.lifecycle import LifecyclePort
from protocols.messages import WorkerId
from protocols.sections import Section, Site
from tests.support import hosted
from tests.support.launchers import ENCODED, INPROC, PROCESSES, RAY, OpenLauncher, chosen
from tests.support.vertices import vertices

Members = Callable[..., tuple[Vertex, ...]]
A, B, C, D = (WorkerId(f"reward/{number}") for number in range(4))


@pytest.fixture(params=[INPROC, ENCODED, PROCESSES, RAY])
def open_one(request: pytest.FixtureRequest) -> OpenLauncher:
    return chosen(request)


@pytest.fixture(autouse=True)
def _nothing_is_left(tmp_path: Path) -> Generator[None]:
    yield
    assert hosted.open_in(tmp_path) == []


@pytest.fixture
def members(tmp_path: Path) -> Members:
    """Make so many members; those whose numbers are in ``broken`` cannot be opened."""
    return partial(_members, tmp_path)


def _members(folder: Path, count: int, broken: Sequence[int] = ()) -> tuple[Vertex, ...]:
    adapters = [
        Section(
            kind=hosted.KIND,
            options={
                "name": f"reward/{number}",
                "folder": str(folder),
                "opening": "refused" if number in broken else "works",
            },
        )
        for number in range(count)
    ]
    return vertices("reward", "reward", adapters)


@asynccontextmanager
async def opened(
    open_one: OpenLauncher, planned: tuple[Vertex, ...]
) -> AsyncGenerator[tuple[LifecyclePort, LauncherPort]]:
    async with (
        open_one() as launcher,
        open_group(planned, launcher, Site(job_dir="/"), start_s=120.0, stop_s=60.0) as group,
    ):
        yield group, launcher


async def test_all_members_are_ready_and_none_is_missing(open_one: OpenLauncher, members: Members) -> None:
    async with opened(open_one, members(2)) as (group, _):
        assert await group.ready() == {A, B}
        assert await group.missing() == frozenset()
        assert await group.probe(A)
        assert not await group.probe(C)


async def test_a_member_that_was_ended_is_missing_until_it_is_replaced(
    open_one: OpenLauncher, members: Members, tmp_path: Path
) -> None:
    async with opened(open_one, members(2)) as (group, launcher):
        await launcher.kill(B)
        assert (await group.ready(), await group.missing()) == ({A}, {B})
        await group.replace((B,))
        assert (await group.ready(), await group.missing()) == ({A, B}, frozenset())
        assert hosted.open_in(tmp_path) == [A, B]


async def test_replacing_one_that_runs_ends_it_first(open_one: OpenLauncher, members: Members) -> None:
    async with opened(open_one, members(1)) as (group, launcher):
        before = (await launcher.poll())[A]
        await group.replace((A,))
        after = (await launcher.poll())[A]
        assert after.running
        assert before.pid is None or before.pid != after.pid


async def test_scale_launches_who_is_new_and_ends_who_is_not_wanted_any_more(
    open_one: OpenLauncher, members: Members, tmp_path: Path
) -> None:
    """Issue E: ``scale`` changes who is asked for and nobody else."""
    one, two, *rest = members(4)
    async with opened(open_one, (one, two)) as (group, launcher):
        before = (await launcher.poll())[B]
        await group.scale((two, *rest))
        assert await group.ready() == {B, C, D}
        assert await group.missing() == frozenset()
        assert hosted.open_in(tmp_path) == [B, C, D]
        assert (await launcher.poll())[B] == before
        await group.scale((two,))
        assert await group.ready() == {B}
        await group.scale((two,))
        assert hosted.open_in(tmp_path) == [B], "what is so already stays so"


async def test_a_scale_that_fails_leaves_the_members_and_going_back_ends_who_was_to_join(
    open_one: OpenLauncher, members: Members, tmp_path: Path
) -> None:
    planned = members(4, broken=[3])
    async with opened(open_one, planned[:2]) as (group, _):
        with pytest.raises(ConductorError):
            await group.scale(planned[1:])
        assert await group.ready() >= {A, B}, "nobody left for those who did not come"
        assert await group.missing() == frozenset(), "who was to join is no member"
        await group.scale(planned[:2])
        assert hosted.open_in(tmp_path) == [A, B]
        await group.scale(planned[:3])
        assert await group.ready() == {A, B, C}


async def test_the_end_of_the_group_ends_who_joined_as_well(
    open_one: OpenLauncher, members: Members, tmp_path: Path
) -> None:
    planned = members(2)
    async with open_one() as launcher:
        async with open_group(planned[:1], launcher, Site(job_dir="/"), start_s=120.0, stop_s=60.0) as group:
            await group.scale(planned)
            assert hosted.open_in(tmp_path) == [A, B]
        assert hosted.open_in(tmp_path) == []
        assert await launcher.poll() == {}


async def test_one_that_joins_anew_after_it_has_left_is_launched_as_it_is_wanted_then(
    open_one: OpenLauncher, members: Members, tmp_path: Path
) -> None:
    """A name is used again; what it stood for before is not."""
    one, two = members(2)
    async with opened(open_one, (one, two)) as (group, _):
        await group.scale((one,))
        renamed = msgspec.structs.replace(
            two,
            adapter=Section(kind=hosted.KIND, options={**two.adapter.options, "name": "another"}),
        )
        await group.scale((one, renamed))
        assert hosted.open_in(tmp_path) == ["another", A]
