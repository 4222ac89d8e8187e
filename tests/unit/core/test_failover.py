"""What is decided about lost workers."""

from collections import Counter
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.core.failover import Decision, Raise, Restart, Situation, Strikes, decide
from protocols.backend import Resources
from protocols.errors import BudgetExhausted, StateLost
from protocols.fleet import Cause, PlannedRole, Restarts
from protocols.messages import WeightVersion, WorkerId

ENGINE = WorkerId("rollout/0")
CAUSES: tuple[Cause, ...] = get_args(Cause)
BUDGET = Restarts(worker=2, controller=3, preemption=5)


def role(name: str = "rollout", restarts: Restarts = BUDGET) -> PlannedRole:
    return PlannedRole(name=name, instances=2, resources=Resources(), strategy="pack", restarts=restarts)


def decided(counts: dict[Cause, int], cause: Cause = "worker", **facts: Any) -> Decision:
    base: dict[str, Any] = {"left": 1, "holds_state": False, "restarted": False, "failure": "it crashed"}
    return decide(Situation(**{"role": role(), "lost": {ENGINE: counts}, "cause": cause, **base, **facts}))


@given(cause=st.sampled_from(CAUSES), spent=st.integers(1, 9), others=st.integers(0, 50))
def test_each_cause_has_a_budget_of_its_own(cause: Cause, spent: int, others: int) -> None:
    """W09: preemptions ate the budget for failures, and a node that went away ended a run that could go on."""
    counts: dict[Cause, int] = {**dict.fromkeys(CAUSES, others), cause: spent}
    decision = decided(counts, cause, restarted=True)
    assert isinstance(decision, Restart) == (spent <= BUDGET.allowed(cause))
    if isinstance(decision, Raise):
        assert isinstance(decision.error, BudgetExhausted)
        assert (decision.error.spent, decision.error.allowed) == (spent, BUDGET.allowed(cause))
        assert decision.error.field == f"fleet.roles.rollout.restarts.{cause}"


def test_the_first_loss_is_made_good_at_once_and_pauses_grow() -> None:
    pauses: list[float] = []
    for spent in range(1, 6):
        decision = decided({"preemption": spent}, "preemption")
        assert isinstance(decision, Restart)
        pauses.append(decision.after_s)
    assert pauses[0] == 0
    assert pauses == sorted(pauses)
    assert pauses[-1] > pauses[1] > 0


def test_what_a_worker_cannot_bear_its_role_may_and_then_the_job() -> None:
    """Levels: worker, role, job."""
    worn: dict[Cause, int] = {"worker": 3}
    whole_role = decided(worn)
    assert isinstance(whole_role, Restart)
    assert whole_role.role
    last = decided(worn, restarted=True)
    assert isinstance(last, Raise)


def test_a_role_that_holds_what_was_trained_is_never_launched_anew_as_a_whole() -> None:
    one_of_two = decided({"worker": 1}, role=role("policy"), holds_state=True, left=1)
    assert isinstance(one_of_two, Restart)
    assert not one_of_two.role
    worn = decided({"worker": 3}, role=role("policy"), holds_state=True, left=1)
    assert isinstance(worn, Raise), "a restart of all would lose what the other one holds"
    nobody = decided({"worker": 1}, role=role("policy"), holds_state=True, left=0)
    assert isinstance(nobody, Raise)
    assert isinstance(nobody.error, StateLost)


def test_the_worst_of_several_decides() -> None:
    lost: dict[WorkerId, dict[Cause, int]] = {ENGINE: {"worker": 1}, WorkerId("rollout/1"): {"worker": 9}}
    decision = decided({}, lost=lost, restarted=True)
    assert isinstance(decision, Raise)
    assert "rollout/1" in str(decision.error)


@pytest.mark.parametrize(
    ("losses", "counted"),
    [
        pytest.param([0, 0, 0], 3, id="the run stands still"),
        pytest.param([0, 1, 2, 3], 4, id="it dies with every step"),
        pytest.param([0, 1, 3], 1, id="it lived through two steps"),
        pytest.param([7], 1, id="the first one"),
    ],
)
def test_a_worker_that_lived_through_steps_of_the_run_is_forgiven(losses: list[int], counted: int) -> None:
    """A budget that nothing refills ends every run that is long enough."""
    strikes = Strikes()
    for version in losses:
        strikes.strike("worker", WeightVersion(version))
    assert strikes.counts == Counter({"worker": counted})
