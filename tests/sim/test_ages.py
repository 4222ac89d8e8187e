"""What counts as the age of a group: all the time between its oldest token and its train step."""

import anyio
import pytest

from conductor.core.staleness import Drop, Loose
from protocols.errors import InvariantError
from protocols.grading import GradeReport, GradeRequest
from protocols.inference import AbortReport
from tests.support.runs import run_config, run_scripted
from tests.support.scripted.workloads import ScriptedWorkloads, scripted_workloads


@pytest.mark.parametrize("policy", ["wait", "drop", "partial", "loose"])
async def test_the_time_in_the_queue_counts(policy: str) -> None:
    """I34: a filter looked at a group's age when it was put into the queue, and trained it much later."""
    scripted = scripted_workloads(100, step_s=50.0)
    result = await run_scripted(run_config(steps=4, max_age=3, staleness=policy), scripted)
    # all eight groups are made by v0 within the first second; the fourth batch then waits for three steps
    assert [record.metrics["age/max"] for record in result.metrics] == [0.0, 1.0, 2.0, 3.0]


def graded_late(position: int) -> ScriptedWorkloads:
    """Return workloads that grade one group half a minute later than the others."""
    scripted = scripted_workloads(100)
    grade = scripted.grader.grade

    async def slowly(request: GradeRequest) -> GradeReport:
        if request.prompt.position == position:
            await anyio.sleep(30.0)
        return await grade(request)

    scripted.grader.grade = slowly
    return scripted


async def test_what_grew_too_old_while_it_was_graded_is_not_trained() -> None:
    """I34: fresh when its rollouts ended, and over age when its reward came."""
    scripted = graded_late(1)
    result = await run_scripted(run_config(steps=30, max_age=1, staleness="drop"), scripted)
    trained = [group.lease_id for batch in scripted.trainer.steps for group in batch.groups]
    assert "L1" not in trained
    assert result.dropped == {"stale": 1}


async def test_a_policy_that_forgets_its_bound_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Law 3: whoever claims a batch looks at its ages, whatever selected it."""
    monkeypatch.setattr(Drop, "select", Loose.select)
    monkeypatch.setattr(Drop, "evict", Loose.evict)
    with pytest.raises(InvariantError, match=r"L1 would be trained at v\d+ with tokens of v0: .* an age of 1"):
        await run_scripted(run_config(steps=60, max_age=1, staleness="drop"), graded_late(1))


async def test_partial_cuts_a_group_short_when_new_weights_make_it_too_old() -> None:
    """Else an engine would work on for a minute and a half on what nobody may train."""
    scripted = scripted_workloads(
        100, duration_s=lambda lease: 100.0 if lease.prompt.position == 0 and lease.attempt == 0 else 1.0
    )
    result = await run_scripted(run_config(steps=8, max_age=1, staleness="partial"), scripted)
    assert anyio.current_time() < 20.0
    assert [lease.attempt for lease in scripted.executor.leases if lease.lease_id == "L0"] == [0, 1]
    assert sum(record.metrics["waste/groups"] for record in result.metrics) == 1
    assert max(record.metrics["age/max"] for record in result.metrics) <= 1


async def test_a_group_that_is_begun_anew_is_admitted_though_nothing_else_moves() -> None:
    """I09: the last group of a run was readmitted, and whoever admits slept on."""
    scripted = scripted_workloads(
        100, duration_s=lambda lease: 100.0 if lease.prompt.position == 0 and lease.attempt == 0 else 1.0
    )
    abort = scripted.executor.abort

    async def slowly(prefix: str) -> AbortReport:
        await anyio.sleep(5.0)
        return await abort(prefix)

    scripted.executor.abort = slowly
    result = await run_scripted(run_config(steps=3, batch_groups=1, max_age=1, staleness="partial"), scripted)
    assert result.steps == 3
    assert anyio.current_time() < 30.0
