"""The fault search finds what breaks a law, shrinks it, and says how to replay it."""

import msgspec
import pytest

from conductor import settling
from conductor.config import RunConfig
from conductor.simulation.laws import broken
from conductor.simulation.life import Life
from conductor.simulation.search import IMPOSSIBLE, STAGES, run_schedule, search
from conductor.simulation.shapes import draw
from conductor.stages import reward
from protocols.faults import KINDS, METHODS, FaultPlan, parse_plan
from protocols.inference import Sampling
from protocols.ledger import Committed, Graded

JOB = RunConfig(steps=1, batch_groups=1, group_size=2, sampling=Sampling(max_tokens=1))
LOST = parse_plan("lost_reply@RolloutExecutor.generate#1+0;slow@PromptSource.draw#2+3")


def life_of(seed: int, plan: FaultPlan) -> Life:
    return run_schedule(draw(JOB, seed, plan))


def test_an_undisturbed_run_keeps_every_law() -> None:
    for seed in range(20):
        life = life_of(seed, FaultPlan())
        assert life.error is None
        assert broken(life, FaultPlan()) == ()


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_fault_is_drawn_and_survived(kind: str) -> None:
    """Law 7: whatever goes wrong once, the run ends as it should."""
    plans = [parse_plan(f"{kind}@{method}#1+1") for method in METHODS[kind]]  # type: ignore[index]
    for number, plan in enumerate(plans):
        assert broken(life_of(number, plan), plan) == ()


def test_an_abort_that_reaches_nobody_breaks_law_5(monkeypatch: pytest.MonkeyPatch) -> None:
    """I44, I46: requests ran on after the group was given up; the search must see it."""

    async def believed(ctx: object, prefix: str) -> frozenset[str]:
        return frozenset()

    monkeypatch.setattr(settling, "stop", believed)
    findings = search(JOB, range(40), parse_plan("crash@Trainer.train_step#1"))
    assert any("law 5" in line for one in findings.found for line in one.broken)


def test_a_bug_that_takes_no_fault_is_found_with_an_empty_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Law 1: every group is filtered, and no fault is to blame."""
    judged = reward._judge
    monkeypatch.setattr(reward, "_judge", lambda ctx, rewards: "filter_for_good" if judged(ctx, rewards) else "train")
    findings = search(JOB, range(3), LOST)
    assert findings.found
    assert {one.plan for one in findings.found} == {""}


def test_a_finding_keeps_only_the_faults_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry that forgot to abort: only the lost reply leads there, and the slow prompt goes."""

    async def forgetful(ctx: object, lease: object, error: Exception) -> None:
        raise KeyError("nobody foresaw it")

    monkeypatch.setattr("conductor.stages.rollout.retry", forgetful)
    findings = search(JOB, range(1), LOST)
    (found,) = findings.found
    assert found.plan == "lost_reply@RolloutExecutor.generate#1+0"
    assert any("it ended with what nobody foresaw" in line for line in found.broken)
    replay = run_schedule(draw(JOB, found.seed, parse_plan(found.plan)))
    assert broken(replay, parse_plan(found.plan)) == found.broken


def test_a_token_from_the_future_is_refused() -> None:
    """Law 3, found by the search: an engine that named a version to come was believed, and its age was negative."""
    plan = parse_plan("wrong_version@Engine.generate#1+0")
    life = life_of(0, plan)
    assert "is the newest" in str(life.error)
    assert broken(life, plan) == ()


def tampered(life: Life, **changes: object) -> Life:
    for name, value in changes.items():
        setattr(life, name, value)
    return life


def test_the_laws_see_what_is_wrong() -> None:
    """Each of them can fail."""
    nothing = FaultPlan()
    late = tampered(life_of(1, nothing), seconds=1e9)
    assert any(line.startswith("law 7") for line in broken(late, nothing))
    failed = tampered(life_of(1, nothing), error=KeyError("x"), result=None)
    assert any("nobody foresaw" in line for line in broken(failed, nothing))
    left = tampered(life_of(1, nothing), owners=frozenset({"p.1/L0/0/"}))
    assert any("payloads left" in line for line in broken(left, nothing))
    runs_on = life_of(1, nothing)
    runs_on.observed.unstopped.append("p.1/L0/0/0/0")
    assert any(line.startswith("law 5") for line in broken(runs_on, nothing))
    twice = life_of(1, nothing)
    twice.observed.trained.append(twice.observed.trained[0])
    assert any("trained twice" in line for line in broken(twice, nothing))
    lost = life_of(1, nothing)
    lost.events = tuple(event for event in lost.events if not isinstance(event, Committed))
    assert any(line.startswith("law 1") for line in broken(lost, nothing))


def test_the_laws_see_a_group_that_is_too_old() -> None:
    """Law 3: on policy nothing is old."""
    seed = next(seed for seed in range(50) if (cfg := draw(JOB, seed, FaultPlan()).cfg).max_age == 0 and cfg.steps > 1)
    life = life_of(seed, FaultPlan())
    stale = next(event for event in life.events if isinstance(event, Graded))
    life.events = tuple(
        msgspec.structs.replace(event, receipt=msgspec.structs.replace(stale.receipt, lease_id=event.lease_id))
        if isinstance(event, Graded)
        else event
        for event in life.events
    )
    assert any("on policy" in line for line in broken(life, FaultPlan()))


def test_every_cell_that_cannot_be_hit_has_a_reason() -> None:
    for kind in KINDS:
        assert set(IMPOSSIBLE[kind]) <= set(STAGES)
        assert all(IMPOSSIBLE[kind].values())
        assert len(IMPOSSIBLE[kind]) < len(STAGES)
