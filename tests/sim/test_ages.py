"""What counts as the age of a group: all the time between its oldest token and its train step."""

import anyio
import pytest

from protocols.grading import GradeReport, GradeRequest
from tests.support.runs import run_config, run_scripted
from tests.support.scripted.workloads import scripted_workloads


@pytest.mark.parametrize("policy", ["wait", "drop", "partial", "loose"])
async def test_the_time_in_the_queue_counts(policy: str) -> None:
    """I34: a filter looked at a group's age when it was put into the queue, and trained it much later."""
    scripted = scripted_workloads(100, step_s=50.0)
    result = await run_scripted(run_config(steps=4, max_age=3, staleness=policy), scripted)
    # all eight groups are made by v0 within the first second; the fourth batch then waits for three steps
    assert [record.metrics["age/max"] for record in result.metrics] == [0.0, 1.0, 2.0, 3.0]


async def test_what_grew_too_old_while_it_was_graded_is_not_trained() -> None:
    """I34: fresh when its rollouts ended, and over age when its reward came."""
    scripted = scripted_workloads(100)
    grade = scripted.grader.grade

    async def slowly(request: GradeRequest) -> GradeReport:
        if request.prompt.position == 1:
            await anyio.sleep(30.0)
        return await grade(request)

    scripted.grader.grade = slowly
    result = await run_scripted(run_config(steps=30, max_age=1, staleness="drop"), scripted)
    trained = [group.lease_id for batch in scripted.trainer.steps for group in batch.groups]
    assert "L1" not in trained
    assert result.dropped == {"stale": 1}
