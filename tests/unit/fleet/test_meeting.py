"""Rounds, barriers and broadcasts of the workers of one role."""

from collections.abc import Awaitable, Callable
from functools import partial

import anyio
import pytest

from conductor.fleet.meeting import Meeting
from protocols.aio import owned
from protocols.errors import InvariantError, PeersLost
from protocols.messages import WorkerId
from protocols.roles import Generation, Meet

ZERO, ONE, TWO = MEMBERS = tuple(WorkerId(f"judge/{number}") for number in range(3))
PATIENCE_S = 60.0


@pytest.fixture
def meeting() -> Meeting:
    return Meeting(MEMBERS, patience_s=PATIENCE_S)


async def together(*acts: Callable[[], Awaitable[object]]) -> list[object]:
    """Do everything at once; returns results and errors, in order."""
    said: list[object] = [None] * len(acts)

    async def one(number: int, act: Callable[[], Awaitable[object]]) -> None:
        try:
            said[number] = await owned("act", act)
        except (PeersLost, InvariantError) as exc:
            said[number] = exc

    async with anyio.create_task_group() as tasks:
        for number, act in enumerate(acts):
            tasks.start_soon(one, number, act, name=f"act {number}")
    return said


def comes(
    meeting: Meeting, worker: WorkerId, generation: int = 1, value: bytes = b""
) -> Callable[[], Awaitable[object]]:
    return partial(meeting.gather, Meet(worker=worker, generation=generation, value=value))


async def meet(meeting: Meeting) -> list[object]:
    return await together(*(partial(meeting.rendezvous, member) for member in MEMBERS))


async def test_all_meet_in_a_round_and_each_is_told_its_rank(meeting: Meeting) -> None:
    assert await meet(meeting) == [Generation(number=1, rank=rank, world=3) for rank in range(3)]
    assert await meet(meeting) == [Generation(number=2, rank=rank, world=3) for rank in range(3)]


async def test_what_each_brings_is_told_by_rank_whatever_the_order_of_coming(meeting: Meeting) -> None:
    """W16: stored by rank and read by position."""
    await meet(meeting)
    order = (TWO, ZERO, ONE)
    for _ in range(2):
        said = await together(*(comes(meeting, member, value=member.encode()) for member in order))
        assert said == [tuple(member.encode() for member in MEMBERS)] * 3


async def test_a_barrier_is_released_when_one_dies_inside_and_names_the_missing(meeting: Meeting) -> None:
    """W08: a barrier hung when a rank died inside it."""
    await meet(meeting)
    began = anyio.current_time()

    async def dies() -> None:
        await anyio.sleep(1)
        meeting.lost(ONE)

    said = await together(comes(meeting, ZERO), comes(meeting, TWO), dies)
    for failure in said[:2]:
        assert str(failure) == "call 0 of generation 1 is without rank 1 (judge/1): judge/1 is lost"
    assert anyio.current_time() - began == 1.0


async def test_a_barrier_has_a_deadline_and_names_the_missing(meeting: Meeting) -> None:
    """W08, W15: who never comes is not waited for without end."""
    await meet(meeting)
    (failure,) = await together(comes(meeting, ZERO))
    assert isinstance(failure, PeersLost)
    assert "without rank 1 (judge/1), rank 2 (judge/2): nobody came any more within 60 s" in str(failure)
    (failure,) = await together(partial(meeting.rendezvous, TWO))
    assert "round 2 is without rank 0 (judge/0), rank 1 (judge/1)" in str(failure)
    assert [one.number for one in await meet(meeting) if isinstance(one, Generation)] == [2, 2, 2]


async def test_a_call_of_an_older_generation_is_refused(meeting: Meeting) -> None:
    """A worker that was replaced must not pair up with those that have met its successor."""
    await meet(meeting)
    await meet(meeting)
    (failure,) = await together(comes(meeting, ZERO, generation=1))
    assert str(failure) == "generation 1 is over: 2 has met"
    said = await together(*(comes(meeting, member, generation=2) for member in MEMBERS))
    assert said == [(b"", b"", b"")] * 3


async def test_another_round_ends_the_generation_before(meeting: Meeting) -> None:
    await meet(meeting)

    async def later() -> object:
        await anyio.sleep(1)
        return await meeting.rendezvous(ONE)

    waits, _ = await together(comes(meeting, ZERO), later)
    assert "without rank 1 (judge/1), rank 2 (judge/2): judge/1 began another round" in str(waits)
    (failure,) = await together(comes(meeting, ZERO))
    assert str(failure) == "generation 1 is over: judge/1 began another round"


async def test_the_successor_of_a_lost_worker_comes_to_the_round_in_its_place(meeting: Meeting) -> None:
    async def dies_and_comes_again() -> object:
        with anyio.move_on_after(1):
            await meeting.rendezvous(ONE)
        meeting.lost(ONE)
        return await meeting.rendezvous(ONE)

    async def late() -> object:
        await anyio.sleep(2)
        return await meeting.rendezvous(TWO)

    said = await together(partial(meeting.rendezvous, ZERO), dies_and_comes_again, late)
    assert said == [Generation(number=1, rank=rank, world=3) for rank in range(3)]


async def test_who_is_cancelled_in_a_barrier_releases_the_others(meeting: Meeting) -> None:
    """Its next call would be the others' second: they would pair up wrongly for ever."""
    await meet(meeting)

    async def leaves() -> None:
        with anyio.move_on_after(1):
            await comes(meeting, ONE)()

    waits, _ = await together(comes(meeting, ZERO), leaves)
    assert "without rank 1 (judge/1), rank 2 (judge/2): judge/1 left" in str(waits)


async def test_nobody_meets_who_is_no_worker_of_the_role(meeting: Meeting) -> None:
    with pytest.raises(InvariantError, match="reward/0 is none of judge/0"):
        await meeting.rendezvous(WorkerId("reward/0"))
