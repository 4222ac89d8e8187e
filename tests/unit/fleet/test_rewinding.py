"""What is decided when all that was trained is lost, and how it is told of."""

from typing import Any

import anyio
import pytest
import structlog

from conductor.core.failover import Strikes
from conductor.fleet.journal import Journal
from conductor.fleet.rewinding import Rewinding
from protocols.errors import BudgetExhausted, PortFailed, StateLost
from protocols.fleet import Restarts
from protocols.incidents import Incident
from protocols.messages import WeightVersion
from protocols.pauses import pause_s

LOSS = StateLost(workers=("policy/0", "policy/1"), cause="they were killed")
TAKEN = StateLost(workers=("policy/0",), cause="the machine went away", preempted=True)
V7, V9 = WeightVersion(7), WeightVersion(9)


class Told:
    """Keeps the incidents that it is told of."""

    def __init__(self) -> None:
        self.incidents: list[Incident] = []
        self.journal = Journal(trained=lambda: V7, record=self._record, log=structlog.get_logger())

    async def _record(self, incident: Any) -> None:
        await anyio.lowlevel.checkpoint()
        self.incidents.append(incident)


async def lose(rewinding: Rewinding, loss: StateLost = LOSS, version: WeightVersion = V7) -> float:
    """Lose what was trained, and go back; returns how long the pause was."""
    rewinding.judge(loss, version=version, checkpoint=WeightVersion(4))
    began = anyio.current_time()
    await rewinding.go_back()
    return anyio.current_time() - began


async def test_a_run_that_goes_on_tells_of_it_once_and_how_long_it_took() -> None:
    rewinding, told = Rewinding("policy", Restarts()), Told()
    await rewinding.arrive(told.journal)
    assert told.incidents == [], "a life that begins as usual has nothing to tell"
    await lose(rewinding)
    await rewinding.conclude(told.journal)
    await anyio.sleep(20)
    await rewinding.arrive(told.journal)
    await rewinding.arrive(told.journal)
    (incident,) = told.incidents
    assert (incident.role, incident.workers, incident.version) == ("policy", LOSS.workers, V7)
    assert (incident.cause, incident.level, incident.verdict, incident.attempts) == ("worker", "job", "restored", 1)
    assert incident.detail == str(LOSS)
    assert incident.seconds == pytest.approx(20)


async def test_without_a_checkpoint_the_job_is_given_up_and_says_so() -> None:
    rewinding, told = Rewinding("policy", Restarts()), Told()
    loss = StateLost(workers=("policy/0",), cause="it was killed")
    loss.add_note("what failed beside it")
    rewinding.judge(loss, version=V7, checkpoint=None)
    await rewinding.conclude(told.journal)
    with pytest.raises(PortFailed, match="there is no checkpoint to go back to") as raised:
        await rewinding.go_back()
    assert raised.value.__notes__ == ["what failed beside it"]
    (incident,) = told.incidents
    assert (incident.verdict, incident.attempts) == ("given_up", 0)
    assert incident.detail == f"{loss}; then {raised.value}"


async def test_what_is_lost_on_the_way_back_is_told_of_with_what_was_lost_before() -> None:
    """A life that dies before it has loaded the checkpoint knows of none, and of no version."""
    rewinding, told = Rewinding("policy", Restarts()), Told()
    await lose(rewinding)
    await anyio.sleep(5)
    rewinding.judge(TAKEN, version=WeightVersion(0), checkpoint=None)
    await rewinding.go_back()
    await rewinding.arrive(told.journal)
    (incident,) = told.incidents
    assert (incident.version, incident.attempts, incident.cause) == (V7, 2, "worker")
    assert incident.detail == f"{LOSS}; then {TAKEN}"
    assert incident.seconds >= 5


async def test_a_trainer_that_is_lost_again_and_again_ends_the_job() -> None:
    """I61: pauses grow, the budget is named, and steps that are made again refill nothing."""
    rewinding = Rewinding("policy", Restarts(worker=2))
    pauses: list[float] = []
    for version in (7, 5):
        pauses.append(await lose(rewinding, version=WeightVersion(version)))
        await rewinding.arrive(Told().journal)
    assert pauses == [0.0, pause_s(1, "policy")]
    with pytest.raises(BudgetExhausted) as raised:
        await lose(rewinding)
    assert raised.value.field == "fleet.roles.policy.restarts.worker"


async def test_steps_beyond_the_one_at_which_it_was_lost_refill_the_budget() -> None:
    rewinding = Rewinding("policy", Restarts(worker=1))
    for version in range(7, 20, 2):
        assert await lose(rewinding, version=WeightVersion(version)) == 0.0
        await rewinding.arrive(Told().journal)


async def test_a_place_that_is_taken_away_is_none_of_its_failures() -> None:
    """W09: preemption has a budget of its own."""
    rewinding, told = Rewinding("policy", Restarts(worker=0, preemption=2)), Told()
    await lose(rewinding, TAKEN)
    await rewinding.arrive(told.journal)
    assert [incident.cause for incident in told.incidents] == ["preemption"]
    with pytest.raises(BudgetExhausted):
        await lose(rewinding, LOSS)


async def test_an_error_on_the_way_back_says_what_the_run_was_going_back_for() -> None:
    rewinding = Rewinding("policy", Restarts())
    await lose(rewinding)
    error = PortFailed("the disk is full")
    rewinding.explain(error)
    assert error.__notes__ == [f"the run was going back to its last checkpoint, since {LOSS}"]


def test_a_version_that_goes_back_is_no_progress() -> None:
    strikes = Strikes()
    strikes.strike("worker", V9)
    assert strikes.standing(V7)
