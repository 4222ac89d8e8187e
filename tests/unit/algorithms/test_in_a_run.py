"""What the trainer is given when a job names an algorithm."""

import pytest

from conductor.algorithms.table import ALGORITHMS
from protocols.errors import ConfigError, UserError
from protocols.grading import Grade, GradeFault, GradeRequest
from protocols.sections import Section
from protocols.training import Algorithm
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
    await run_scripted(run_config(steps=1, group_size=3, train=_train(name)), scripted)
    first, second = ALGORITHMS[name].advantages([[6.0, 3.0], [9.0, 12.0, 9.0]])
    groups = scripted.trainer.steps[0].groups
    assert [tuple(row.advantage for row in group.samples) for group in groups] == [(first[0], 0.0, first[1]), second]
    assert [tuple(row.reward for row in group.samples) for group in groups] == [(6.0, 0.0, 3.0), (9.0, 12.0, 9.0)]
    assert [tuple(row.weight for row in group.samples) for group in groups] == [(1.0, 0.0, 1.0), (1.0, 1.0, 1.0)]


def _train(name: Algorithm) -> Section:
    return Section(kind="torch", options={"algorithm": name})


@pytest.mark.parametrize("name", ["ppo", "reinforce_pp"])
async def test_an_algorithm_that_compares_nothing_trains_on_groups_of_one(name: Algorithm) -> None:
    """Equal rewards are no reason to filter there: a critic, or the rest of the batch, is what they are measured by."""
    scripted = scripted_workloads(rewards=lambda request: [Grade(reward=1.0) for _ in request.samples])
    result = await run_scripted(run_config(group_size=1, train=_train(name)), scripted)
    assert (result.steps, result.accounts.filtered, result.accounts.committed) == (2, 0, 4)


async def test_one_that_compares_refuses_groups_of_one() -> None:
    with pytest.raises(ConfigError, match="'grpo' compares the samples of a group"):
        await run_scripted(run_config(group_size=1), scripted_workloads())


async def test_an_algorithm_that_nobody_knows_is_refused() -> None:
    section = Section(kind="torch", options={"algorithm": "gpro"})
    with pytest.raises(
        ConfigError, match=r"train\.algorithm = 'gpro': there is no such algorithm; did you mean 'gspo'"
    ):
        await run_scripted(run_config(train=section), scripted_workloads())


async def test_rewards_that_an_algorithm_cannot_read_end_the_run_as_the_users_error() -> None:
    def negative(request: GradeRequest) -> list[Grade | GradeFault]:
        return [Grade(reward=-float(sample)) for sample in request.samples]

    scripted = scripted_workloads(rewards=negative)
    with pytest.raises(UserError, match="needs rewards of at least 0, got -1"):
        await run_scripted(run_config(train=_train("maxrl")), scripted)
    assert scripted.trainer.steps == []
