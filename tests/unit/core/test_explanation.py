"""What a status is put into: every wait by name, and what would end it."""

from typing import Any

import pytest

from conductor.core.explanation import explain, stalled
from conductor.core.status import EngineStanding, EvaluationStatus, GroupStatus, RunStatus, WaitStatus
from protocols.messages import LeaseId, WeightVersion


def status(**fields: Any) -> RunStatus:
    base: dict[str, Any] = {"name": "r", "phase": "training", "step": 3, "steps": 9, "wanted": 4, "slots": 8}
    base |= {"trained": WeightVersion(3), "served": WeightVersion(3), "trainer_idle": True}
    return RunStatus(**(base | fields))


def group(number: int, **fields: Any) -> GroupStatus:
    base: dict[str, Any] = {"state": "generating", "attempt": 0, "call": "RolloutExecutor.generate"}
    base |= {"seconds": 10.0 - number, "deadline_s": 60.0}
    return GroupStatus(lease_id=LeaseId(f"L{number}"), **(base | fields))


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"exhausted": True}, "the prompts have come to their end"),
        ({"epoch_over": True}, "the epoch has no more prompts; the next one begins when the last batch of this one is"),
        ({"running": 3, "slots": 3}, "all 3 slots are lent out"),
        ({"served": WeightVersion(2)}, "groups for v3 are lent out once the engines serve it; they serve v2"),
        ({"served": None}, "groups for v3 are lent out once the engines serve it; they serve nothing"),
        ({}, "admission grants no group"),
    ],
)
def test_it_says_why_no_group_is_lent_out(fields: dict[str, Any], sentence: str) -> None:
    said = explain(status(**fields)).waits_for
    assert said[0] == "the trainer waits for a batch: 0 of 4 groups are graded"
    assert said[1].startswith(sentence)


def test_nothing_is_said_of_admission_where_enough_runs() -> None:
    """I01: the wait names what is missing, and nothing else."""
    said = explain(status(ready=2, running=2, groups=(group(1), group(2)))).waits_for
    assert said == (
        "the trainer waits for a batch: 2 of 4 groups are graded",
        "L1 (attempt 0) is generating: RolloutExecutor.generate for 9.0 s of at most 60 s",
        "L2 (attempt 0) is generating: RolloutExecutor.generate for 8.0 s of at most 60 s",
    )


def test_many_groups_are_counted() -> None:
    """A verdict of ten thousand lines is none."""
    groups = tuple(group(number) for number in range(20))
    said = explain(status(running=900, groups=groups)).waits_for
    assert len(said) == 7
    assert said[-1] == "and 895 more groups"


def test_a_wait_past_its_deadline_is_called_what_it_is() -> None:
    late = WaitStatus(call="Trainer.train_step", of="D3", seconds=70.0, deadline_s=60.0)
    found = explain(status(trainer_idle=False, waits=(late,)))
    assert found.waits_for == (
        "the trainer is at work on step 4",
        "Trainer.train_step of D3 for 70.0 s of at most 60 s",
    )
    assert found.unblocked_by == ("the end of Trainer.train_step of D3, overdue for 10 s: it ignores its deadline",)


def test_engines_are_told_of_with_what_would_mend_them() -> None:
    engines = (
        EngineStanding(name="a", version=WeightVersion(3), live=2),
        EngineStanding(name="b", answers=False),
        EngineStanding(name="c", version=WeightVersion(1), paused=True),
        EngineStanding(name="d"),
        EngineStanding(name="e", version=WeightVersion(2), evaluates=True),
    )
    found = explain(status(ready=4, engines=engines))
    assert found.waits_for[1:] == (
        "engine a serves v3, with 2 live requests",
        "engine b does not answer",
        "engine c serves v1 where v3 is published, with 0 live requests, and is paused",
        "engine d has no weights where v3 is published, with 0 live requests",
        "engine e serves v2, with 0 live requests",
    )
    assert found.unblocked_by[:3] == (
        "an answer of engine b",
        "engine c being resumed",
        "engine d loading v3",
    )


def test_publishing_that_waits_for_an_evaluation_says_so() -> None:
    """DESIGN.md: an evaluation is pinned to its version, and publishing waits for it."""
    going = EvaluationStatus(version=WeightVersion(3), prompts=64, graded=12, failed=1, running=8, seconds=32.0)
    said = explain(status(ready=4, staged=WeightVersion(4), evaluation=going)).waits_for
    assert said[-1] == ("v3 is evaluated for 32.0 s: 12 of 64 prompts are graded, 1 failed; v4 is published after it")


def test_outside_of_training_it_says_what_the_run_does() -> None:
    found = explain(
        status(phase="warming up", waits=(WaitStatus(call="Ledger.replay", of="", seconds=1, deadline_s=9),))
    )
    assert found.waits_for == ("the run is warming up", "Ledger.replay for 1.0 s of at most 9 s")


def test_the_verdict_says_for_how_long() -> None:
    assert stalled(status(quiet_s=7200.0)).startswith("nothing has moved for 7200 s (deadlines.stall), at step 3 of 9:")
