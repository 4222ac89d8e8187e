"""One abort, looked at closely: its shield, its deadline, what it releases, how often it is tried."""

import anyio
import pytest

from conductor.config import Deadlines
from protocols.errors import BudgetExhausted, ConductorError, EngineBusy, PromptTooLong, Stalled, Transient
from protocols.grading import GradeReport, GradeRequest
from protocols.inference import AbortReport
from protocols.pauses import pause_s
from protocols.rollouts import RolloutLease
from tests.support.runs import run_config, run_scripted
from tests.support.scripted.workloads import ScriptedWorkloads, scripted_workloads

PREFIX = "policy.1/L1/0/"


def busy_once(lease: RolloutLease) -> ConductorError | None:
    return EngineBusy(engine="e", waiting=1) if lease.prompt.position == 1 and lease.attempt == 0 else None


class Aborts:
    """What becomes of the aborts of one attempt, each of which takes its time and releases nothing."""

    def __init__(self, scripted: ScriptedWorkloads, *, seconds: float = 0.0, confirmed_from: int = 1) -> None:
        self.begun: list[float] = []
        self.ended: list[float] = []
        self._seconds = seconds
        self._confirmed_from = confirmed_from
        self._abort = scripted.executor.abort
        scripted.executor.abort = self.abort

    async def abort(self, prefix: str) -> AbortReport:
        if prefix != PREFIX:
            return await self._abort(prefix)
        self.begun.append(anyio.current_time())
        await anyio.sleep(self._seconds)
        self.ended.append(anyio.current_time())
        confirmed = len(self.begun) >= self._confirmed_from
        return AbortReport(unconfirmed=frozenset() if confirmed else frozenset({PREFIX}))


async def test_a_cancel_does_not_cut_an_abort_that_is_under_way() -> None:
    """I44, I46: cancelling a group stopped its abort half-way. Here the run is cancelled at 1.5 s."""
    scripted = scripted_workloads(100, failure=busy_once)
    aborts = Aborts(scripted, seconds=3.0)
    with anyio.move_on_after(1.5):
        await run_scripted(run_config(steps=3), scripted)
    assert aborts.begun == [1.0]
    assert aborts.ended == [4.0]


async def test_the_deadline_of_an_abort_bounds_all_that_it_asks_together() -> None:
    """I17: the executor, the engines and the store were given the whole of it each."""
    scripted = scripted_workloads(100, failure=busy_once)
    aborts = Aborts(scripted, seconds=6.0)
    live_requests = scripted.inference.live_requests

    async def slowly() -> frozenset[str]:
        if len(aborts.begun) == 1:
            await anyio.sleep(6.0)
        return await live_requests()

    scripted.inference.live_requests = slowly
    await run_scripted(run_config(steps=3, deadlines=Deadlines(abort=10.0)), scripted)
    assert aborts.begun == [1.0, pytest.approx(1.0 + 10.0 + pause_s(1, "L1"))]


async def test_an_abort_releases_what_the_attempt_stored_whatever_the_executor_does() -> None:
    """I73: the payload was stored, its grade failed, and an executor that forgets releases nothing."""
    scripted = scripted_workloads(100)
    Aborts(scripted)
    grade = scripted.grader.grade
    failed: list[str] = []

    async def fails_once(request: GradeRequest) -> GradeReport:
        if request.prompt.position == 1 and not failed:
            failed.append("L1")
            raise Transient("the judge is gone")
        return await grade(request)

    scripted.grader.grade = fails_once
    await run_scripted(run_config(steps=3), scripted)
    assert PREFIX in scripted.payloads.released


@pytest.mark.parametrize("tries", [3, 4])
@pytest.mark.parametrize("short_s", [0.0, 0.01])
async def test_it_is_tried_for_as_long_as_the_deadline_says(tries: int, short_s: float) -> None:
    """I17: the deadline itself included, and no longer."""
    reconcile = sum(pause_s(number, "L1") for number in range(1, tries)) + 1e-6 - short_s
    tries -= short_s > 0
    scripted = scripted_workloads(100, failure=busy_once)
    Aborts(scripted, confirmed_from=100)
    with pytest.raises(Stalled, match=f"L1 was aborted {tries} times"):
        await run_scripted(run_config(steps=3, deadlines=Deadlines(abort=1.0, reconcile=reconcile)), scripted)


def too_long(*positions: int) -> ScriptedWorkloads:
    """Return workloads that refuse some prompts, before any other group is finished."""

    def failure(lease: RolloutLease) -> ConductorError | None:
        return PromptTooLong(tokens=99, context=32) if lease.prompt.position in positions else None

    return scripted_workloads(
        100, failure=failure, duration_s=lambda lease: 0.5 if lease.prompt.position in positions else 1.0
    )


async def test_the_share_of_bad_data_is_allowed_to_the_group() -> None:
    """I07: with a fifth of ten allowed, the second is and the third is not."""
    cfg = run_config(steps=2, batch_groups=8, slots=10, max_age=1, max_dropped=0.2)
    result = await run_scripted(cfg, too_long(0, 1))
    assert result.accounts.dropped == 2
    assert sum(record.metrics["groups/dropped"] for record in result.metrics) == 2
    with pytest.raises(BudgetExhausted) as caught:
        await run_scripted(cfg, too_long(0, 1, 2))
    assert (caught.value.spent, caught.value.allowed) == (3, 2)


@pytest.mark.parametrize(("groups", "judged"), [(9, False), (10, True)])
async def test_the_first_nine_groups_are_not_judged(groups: int, judged: bool) -> None:
    """One bad prompt of three is no third of the data."""
    cfg = run_config(steps=2, batch_groups=8, slots=groups, max_age=1, max_dropped=0.0)
    if judged:
        with pytest.raises(BudgetExhausted, match="max_dropped"):
            await run_scripted(cfg, too_long(0))
    else:
        assert (await run_scripted(cfg, too_long(0))).accounts.dropped == 1
