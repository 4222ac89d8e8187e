"""What is left of a worker that a role was shrunk by: no process, and nothing that its successor would meet."""

import anyio

from protocols.fleet import Restarts
from tests.unit.fleet.test_failover import LAUNCH_S, A, B, Fleet, Run, tended, until
from tests.unit.fleet.test_group import rollouts


async def test_the_failures_of_one_that_left_do_not_count_against_its_successor() -> None:
    fleet, run = Fleet(), Run()
    async with tended(fleet, run, restarts=Restarts(worker=1)) as failover:
        for count in range(1, 3):
            fleet.crash(B)
            await until(lambda count=count: len(run.incidents) == count)
            await failover.shrink(rollouts()[:1])
            await failover.grow(rollouts())
    assert [(incident.level, incident.verdict) for incident in run.incidents] == [("worker", "restored")] * 2


async def test_one_that_was_lost_when_it_left_is_not_missed() -> None:
    fleet, run = Fleet(), Run()
    async with tended(fleet, run) as failover:
        fleet.crash(B)
        failover.attendance.leave(B)
        await failover.shrink(rollouts()[:1])
        assert failover.attendance.away == frozenset()
        assert run.incidents == []
        assert fleet.launches == []


async def test_one_that_is_being_brought_back_is_there_before_it_is_ended() -> None:
    """Ended in the middle of its launch it came to life afterwards, a process that nobody counted as a member."""
    fleet, run = Fleet(), Run()
    async with tended(fleet, run) as failover:
        fleet.crash(B)
        await until(lambda: fleet.launches == [B])
        with anyio.fail_after(LAUNCH_S + 1):
            await failover.shrink(rollouts()[:1])
        await anyio.sleep(LAUNCH_S)
        assert failover.members == tuple(await fleet.poll()) == (A,)
        assert [incident.verdict for incident in run.incidents] == ["restored"]


async def test_one_that_is_being_ended_is_not_brought_back() -> None:
    """It is dead, and still a member: a look at that moment launched it once more, for nobody."""
    fleet, run = Fleet(), Run()
    async with tended(fleet, run) as failover:
        fleet.crash(B)
        fleet.kill_s = 30.0
        await failover.shrink(rollouts()[:1])
        fleet.kill_s = 0.0
        await anyio.sleep(60)
        assert failover.members == tuple(await fleet.poll()) == (A,)
        assert run.incidents == []
    assert fleet.launches == []
