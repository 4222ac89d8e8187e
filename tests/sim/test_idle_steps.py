"""Steps that change nothing: their groups are given up, and the run takes the step with others."""

from collections.abc import Collection
from dataclasses import replace

import pytest

from backends.sim.prompts import ScriptedPrompts
from protocols.errors import BudgetExhausted
from tests.support.runs import run_config, run_scripted
from tests.support.scripted.hesitant import HesitantTrainer
from tests.support.scripted.workloads import ScriptedWorkloads, scripted_workloads


def hesitant(prompts: int | ScriptedPrompts, idle: Collection[int]) -> ScriptedWorkloads:
    scripted = scripted_workloads(prompts)
    return replace(scripted, trainer=HesitantTrainer(scripted.payloads, idle=idle))


def batch_sizes(scripted: ScriptedWorkloads) -> list[int]:
    return [len(batch.groups) for batch in scripted.trainer.steps]


@pytest.mark.parametrize("max_age", [0, 2])
@pytest.mark.parametrize("idle", [1, 2, 4])
async def test_its_step_is_taken_with_other_groups(idle: int, max_age: int) -> None:
    """I56: with the last step of a run the prompts seemed to be over, and a step was missing."""
    scripted = hesitant(100, {idle})
    result = await run_scripted(run_config(steps=4, max_age=max_age), scripted)
    assert batch_sizes(scripted) == [2, 2, 2, 2]
    assert result.dropped == {"step_changed_nothing": 2}


async def test_a_short_batch_that_changes_nothing_is_no_whole_one() -> None:
    """Law 1: the groups it was short of stayed forgiven, the next batch never filled, and the run hung."""
    scripted = hesitant(ScriptedPrompts(6, epochs=5), {2})
    result = await run_scripted(run_config(steps=6, batch_groups=4), scripted)
    assert batch_sizes(scripted) == [4, 4, 2, 4, 2, 4]
    assert [record.metrics["age/max"] for record in result.metrics] == [0.0] * 6


@pytest.mark.parametrize("max_age", [0, 2])
async def test_at_the_end_of_an_epoch_its_groups_have_one_owner(max_age: int) -> None:
    """Law 2: the train stage gave them up, and as a remainder the batch stage did at the same time."""
    scripted = hesitant(ScriptedPrompts(4, epochs=5), {1})
    cfg = run_config(steps=3, batch_groups=4, remainder="drop", max_age=max_age)
    result = await run_scripted(cfg, scripted)
    assert batch_sizes(scripted) == [4, 4, 4]
    assert result.dropped == {"step_changed_nothing": 4}


async def test_a_trainer_that_never_changes_anything_ends_the_run() -> None:
    """I07: it ends with the numbers, not with the prompts."""
    scripted = hesitant(1000, range(1000))
    with pytest.raises(BudgetExhausted, match="max_dropped"):
        await run_scripted(run_config(), scripted)
    assert not scripted.payloads.held
