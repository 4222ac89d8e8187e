"""What is left of a worker that a role was shrunk by: nothing that the next one of its number would meet."""

from protocols.fleet import Restarts
from tests.unit.fleet.test_failover import B, Fleet, Run, tended, until
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
