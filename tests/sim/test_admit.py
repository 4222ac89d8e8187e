"""What admit writes down together, and what becomes of reopened groups that a run needs no more."""

from collections.abc import Callable
from pathlib import Path

import pytest

from backends.ledgers.memory import MemoryLedger
from backends.sim.grader import alternating
from backends.sim.prompts import ScriptedPrompts
from backends.sim.virtual_time import run_virtual
from conductor.config import CheckpointConfig
from protocols.errors import BudgetExhausted
from protocols.grading import Grade, GradeFault, GradeRequest
from protocols.ledger import Admitted, Dropped, LedgerEvent
from tests.support.lives import Lives
from tests.support.runs import run_config, run_scripted
from tests.support.scripted.workloads import ScriptedWorkloads, scripted_workloads


class WatchedLedger(MemoryLedger):
    """Remembers how many groups were admitted by each append that admitted any."""

    def __init__(self) -> None:
        super().__init__()
        self.waves: list[int] = []

    async def append(self, events: tuple[LedgerEvent, ...]) -> None:
        if admitted := sum(isinstance(event, Admitted) for event in events):
            self.waves.append(admitted)
        await super().append(events)


async def test_prompts_that_come_at_once_are_admitted_in_one_record() -> None:
    """A record for each group of a batch of 512 would be 512 waits for the disk before the first token."""
    ledger = WatchedLedger()
    await run_scripted(run_config(steps=3, batch_groups=8), scripted_workloads(100), ledger)
    assert ledger.waves == [8, 8, 8]


async def test_a_wave_ends_with_its_epoch() -> None:
    """I56: the prompts of the next epoch are drawn already, and admitted when it begins."""
    ledger = WatchedLedger()
    scripted = scripted_workloads(ScriptedPrompts(5, epochs=2))
    await run_scripted(run_config(steps=4, batch_groups=3), scripted, ledger)
    assert ledger.waves == [3, 2, 3, 2]


async def test_the_verdict_on_unreadable_prompts_has_the_numbers() -> None:
    """I07: how many there were, and how many there may be."""
    scripted = scripted_workloads(ScriptedPrompts(1000, unreadable=range(1000)))
    with pytest.raises(BudgetExhausted) as caught:
        await run_scripted(run_config(), scripted)
    assert (caught.value.spent, caught.value.allowed) == (100, 99)


def equal_at_first(request: GradeRequest) -> list[Grade | GradeFault]:
    if request.prompt.position < 2:
        return [Grade(reward=1.0) for _ in request.samples]
    return alternating(request)


def test_reopened_groups_that_the_run_needs_no_more_are_dropped(tmp_path: Path) -> None:
    """Law 1: two were filtered and replaced in the first life, and teach something in the second."""
    rewards: list[Callable[[GradeRequest], list[Grade | GradeFault]]] = [equal_at_first, alternating]

    def build() -> ScriptedWorkloads:
        return scripted_workloads(100, rewards=rewards.pop(0))

    cfg = run_config(steps=1, batch_groups=4, checkpoint=CheckpointConfig(every=1))
    lives = Lives(cfg=cfg, build=build, folder=tmp_path)
    run_virtual(lambda: lives.live(admitted_is(6)))
    result = run_virtual(lives.live)
    assert result is not None
    assert result.accounts.admitted == 6
    assert result.dropped == {"surplus": 2}
    assert Dropped(lease_id="L5", reason="surplus") in lives.events  # type: ignore[arg-type]


def admitted_is(number: int) -> Callable[..., bool]:
    return lambda events: sum(isinstance(event, Admitted) for event in events) == number
