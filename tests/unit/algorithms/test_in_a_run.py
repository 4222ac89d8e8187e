"""What the trainer is given when a job names an algorithm."""

import pytest

from conductor.algorithms.table import ALGORITHMS, Algorithm
from protocols.errors import UserError
from protocols.grading import Grade, GradeFault, GradeRequest
from tests.support.runs import run_config, run_scripted
from tests.support.scripted.workloads import scripted_workloads


def rewards(request: GradeRequest) -> list[Grade | GradeFault]:
    """Give the first prompt 6, a fault and 3, all others 9, 12 and 9."""
    if request.prompt.position == 0:
        return [Grade(reward=6.0), GradeFault(kind="raised", detail="ZeroDivisionError"), Grade(reward=3.0)]
    return [Grade(reward=9.0), Grade(reward=12.0), Grade(reward=9.0)]


@pytest.mark.parametrize("name", ALGORITHMS)
async def test_a_sample_has_the_advantage_that_the_algorithm_gives_its_reward(name: Algorithm) -> None:
    """A failed reward must not shift the others by a place."""
    scripted = scripted_workloads(rewards=rewards)
    await run_scripted(run_config(steps=1, group_size=3, algorithm=name), scripted)
    first, second = ALGORITHMS[name]([[6.0, 3.0], [9.0, 12.0, 9.0]])
    given = [tuple(row.advantage for row in group.samples) for group in scripted.trainer.steps[0].groups]
    assert given == [(first[0], 0.0, first[1]), second]


async def test_rewards_that_an_algorithm_cannot_read_end_the_run_as_the_users_error() -> None:
    def negative(request: GradeRequest) -> list[Grade | GradeFault]:
        return [Grade(reward=-float(sample)) for sample in request.samples]

    scripted = scripted_workloads(rewards=negative)
    with pytest.raises(UserError, match="needs rewards of at least 0"):
        await run_scripted(run_config(algorithm="maxrl"), scripted)
    assert scripted.trainer.steps == []
