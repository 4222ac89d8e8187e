"""How runs end whose last groups come to nothing, and what becomes of groups beyond a batch that is full."""

import anyio
import pytest

from backends.ledgers.memory import MemoryLedger
from protocols.errors import ConductorError, PromptTooLong
from protocols.grading import GradeReport, GradeRequest
from protocols.ledger import Committed, Dropped
from protocols.rollouts import RolloutLease
from tests.support.runs import run_config, run_scripted
from tests.support.scripted.workloads import scripted_workloads


@pytest.mark.parametrize(("max_age", "ends_at_s"), [(0, 52.0), (2, 50.0)])
async def test_a_last_group_that_comes_to_nothing_lets_the_run_end(max_age: int, ends_at_s: float) -> None:
    """I04, I56: the trainer waited for a batch that nobody could fill any more."""

    def failure(lease: RolloutLease) -> ConductorError | None:
        return PromptTooLong(tokens=99, context=32) if lease.prompt.position == 2 else None

    scripted = scripted_workloads(
        3, duration_s=lambda lease: 50.0 if lease.prompt.position == 2 else 1.0, failure=failure
    )
    result = await run_scripted(run_config(steps=5, max_age=max_age), scripted)
    assert (result.steps, result.dropped) == (1, {"prompt_too_long": 1})
    assert anyio.current_time() == pytest.approx(ends_at_s)


async def test_groups_beyond_a_full_batch_are_given_up_before_it_is_trained() -> None:
    """ORACLES.md, over-sampling: what nobody will train holds neither memory nor a place while the step runs."""
    scripted, ledger = scripted_workloads(100, step_s=50.0), MemoryLedger()
    await run_scripted(run_config(steps=2, oversample=2.0), scripted, ledger)
    events = await ledger.replay()
    surplus = [at for at, event in enumerate(events) if isinstance(event, Dropped) and event.reason == "surplus"]
    first, second = (at for at, event in enumerate(events) if isinstance(event, Committed))
    assert sum(at < first for at in surplus) == 2
    assert sum(first < at < second for at in surplus) == 2


async def test_what_is_still_graded_when_its_batch_is_full_is_given_up_afterwards() -> None:
    """I32: it would be trained one version late, at a bound of 0."""
    scripted = scripted_workloads(100)
    grade = scripted.grader.grade

    async def slowly(request: GradeRequest) -> GradeReport:
        if request.prompt.position == 1:
            await anyio.sleep(1.5)
        return await grade(request)

    scripted.grader.grade = slowly
    result = await run_scripted(run_config(steps=3, oversample=1.5), scripted)
    trained = [group.lease_id for batch in scripted.trainer.steps for group in batch.groups]
    assert trained[:2] == ["L0", "L2"]
    assert "L1" not in trained
    assert result.dropped["surplus"] == 3
    assert [record.metrics["age/max"] for record in result.metrics] == [0.0] * 3
