"""Staleness policies in whole runs: ages, what is thrown away, and that every run comes to its end."""

import math
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backends.sim.prompts import ScriptedPrompts
from backends.sim.virtual_time import run_virtual
from conductor.config import FilterConfig
from conductor.result import RunResult
from protocols.errors import BudgetExhausted, ConfigError
from protocols.grading import Grade, GradeFault, GradeRequest
from protocols.rollouts import RolloutLease
from tests.support.runs import run_config, run_scripted
from tests.support.scripted.workloads import ScriptedWorkloads, scripted_workloads

STRICT = ["wait", "drop", "partial"]


def tailed(seed: int = 0, sigma: float = 1.5) -> Callable[[RolloutLease], float]:
    """Return durations with a long tail, the same for every attempt of a prompt."""

    def duration(lease: RolloutLease) -> float:
        return min(50.0, random.Random(f"{seed}/{lease.prompt.position}").lognormvariate(0.0, sigma))

    return duration


def ages(result: RunResult) -> list[float]:
    return [record.metrics["age/max"] for record in result.metrics]


def total(result: RunResult, name: str) -> float:
    return sum(record.metrics[name] for record in result.metrics)


def trained_prompts(scripted: ScriptedWorkloads) -> Counter[str]:
    return Counter(group.lease_id for batch in scripted.trainer.steps for group in batch.groups)


@pytest.mark.parametrize("policy", STRICT)
@pytest.mark.parametrize("max_age", [1, 2.5, 4])
async def test_no_group_is_trained_over_age(policy: str, max_age: float) -> None:
    """Law 3, I33, with a tail that admission alone would let age without bound."""
    scripted = scripted_workloads(10_000, duration_s=tailed(), step_s=0.5)
    cfg = run_config(steps=40, batch_groups=8, slots=24, max_age=max_age, staleness=policy)
    result = await run_scripted(cfg, scripted)
    assert result.steps == 40
    assert max(ages(result)) <= math.ceil(max_age)
    assert max(trained_prompts(scripted).values()) == 1
    assert result.accounts.balanced


async def test_loose_trains_what_comes_whatever_its_age() -> None:
    scripted = scripted_workloads(10_000, duration_s=tailed(), step_s=0.5)
    result = await run_scripted(run_config(steps=40, batch_groups=8, slots=24, max_age=2, staleness="loose"), scripted)
    assert max(ages(result)) > 2


async def test_waiting_throws_nothing_away() -> None:
    scripted = scripted_workloads(10_000, duration_s=tailed(), step_s=0.5)
    result = await run_scripted(run_config(steps=40, batch_groups=8, slots=24, max_age=2), scripted)
    assert (total(result, "waste/groups"), result.accounts.dropped) == (0, 0)
    assert result.accounts.admitted == 320


async def test_what_is_dropped_for_its_age_is_replaced_to_the_exact_batch() -> None:
    """Verl's replay buffer: refill exactly k; the drop is no fault of the data and uses up no budget for it."""
    scripted = scripted_workloads(10_000, duration_s=tailed(), step_s=0.2)
    cfg = run_config(steps=40, batch_groups=8, slots=24, max_age=1, staleness="drop", max_dropped=0.0)
    result = await run_scripted(cfg, scripted)
    assert {len(batch.groups) for batch in scripted.trainer.steps} == {8}
    assert result.dropped["stale"] == result.accounts.dropped > 0
    assert total(result, "waste/groups") == result.accounts.dropped
    assert total(result, "waste/tokens") == 8 * result.accounts.dropped


async def test_dropping_the_slow_shortens_the_data_and_waiting_does_not() -> None:
    """Short groups are never over age; a ratio under 0.95 is a warning."""
    ratios = {}
    for policy in ("drop", "wait"):
        scripted = scripted_workloads(10_000, duration_s=by_length, tokens=length_of, step_s=0.2)
        cfg = run_config(steps=60, batch_groups=8, slots=24, max_age=1, staleness=policy)
        ratios[policy] = (await run_scripted(cfg, scripted)).metrics[-1].metrics["length/ratio"]
    assert ratios["drop"] < 0.95
    assert ratios["wait"] == pytest.approx(1, abs=0.05)


def length_of(lease: RolloutLease) -> int:
    return 1 + int(10 * tailed()(lease))


def by_length(lease: RolloutLease) -> float:
    return length_of(lease) / 10


async def test_what_is_begun_anew_keeps_its_prompt_and_its_attempts() -> None:
    """A group that is restarted for its age has not failed: ``attempts`` = 1 allows it."""
    scripted = scripted_workloads(10_000, duration_s=tailed(), step_s=0.2)
    cfg = run_config(steps=40, batch_groups=8, slots=24, max_age=1, staleness="partial", attempts=1)
    result = await run_scripted(cfg, scripted)
    assert total(result, "waste/groups") > 0
    assert result.accounts.dropped == 0
    again = [lease for lease in scripted.executor.leases if lease.attempt]
    assert again
    first = {lease.lease_id: lease.prompt for lease in scripted.executor.leases if not lease.attempt}
    assert all(lease.prompt == first[lease.lease_id] for lease in again)


async def test_a_group_that_was_graded_when_it_grew_too_old_is_begun_anew() -> None:
    """Law 3: it was finished while the second step ran, and no interrupt reaches what is finished."""
    scripted = scripted_workloads(
        100, duration_s=lambda lease: 15.0 if (lease.lease_id, lease.attempt) == ("L0", 0) else 1.0, step_s=10.0
    )
    result = await run_scripted(run_config(steps=4, max_age=1, staleness="partial"), scripted)
    assert [lease.attempt for lease in scripted.executor.leases if lease.lease_id == "L0"] == [0, 1]
    trained = [group for batch in scripted.trainer.steps for group in batch.groups if group.lease_id == "L0"]
    assert [group.attempt for group in trained] == [1]
    assert max(ages(result)) <= 1


@pytest.mark.parametrize("policy", [*STRICT, "loose"])
async def test_at_max_age_zero_every_policy_is_the_plain_loop(policy: str) -> None:
    """Law 4."""
    scripted = scripted_workloads(100, duration_s=tailed())
    result = await run_scripted(run_config(steps=10, batch_groups=4, staleness=policy), scripted)
    order = [[group.lease_id for group in batch.groups] for batch in scripted.trainer.steps]
    assert order == [[f"L{4 * step + at}" for at in range(4)] for step in range(10)]
    assert ages(result) == [0.0] * 10


@pytest.mark.parametrize("policy", STRICT)
@pytest.mark.parametrize("remainder", ["train", "drop", "carry"])
async def test_prompts_that_end_let_the_run_end(policy: str, remainder: str) -> None:
    """Groups that are begun anew after the last prompt still find somebody who admits them."""
    scripted = scripted_workloads(ScriptedPrompts(30, epochs=2), duration_s=tailed(), step_s=0.2)
    cfg = run_config(steps=1000, batch_groups=4, slots=16, max_age=2, staleness=policy, remainder=remainder)
    result = await run_scripted(cfg, scripted)
    assert result.accounts.open == 0
    assert result.accounts.balanced


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    policy=st.sampled_from(STRICT),
    max_age=st.sampled_from([0, 0.5, 1, 2.5, 4]),
    batch=st.integers(1, 6),
    slots=st.integers(1, 24),
    step_s=st.sampled_from([0.0, 0.1, 1.0, 5.0]),
    publish_s=st.sampled_from([0.0, 0.3]),
    ceiling=st.sampled_from([0, 2, None]),
    on_ceiling=st.sampled_from(["keep", "short"]),
    seed=st.integers(0, 1000),
)
def test_ages_are_bounded_whatever_is_filtered_and_however_long_things_take(
    policy: str,
    max_age: float,
    batch: int,
    slots: int,
    step_s: float,
    publish_s: float,
    ceiling: int | None,
    on_ceiling: str,
    seed: int,
) -> None:
    """Laws 1, 2 and 3: filtered groups that are replaced, or leave a gap, shift what is due when."""

    def rewards(request: GradeRequest) -> list[Grade | GradeFault]:
        equal = random.Random(f"{seed}/{request.prompt.position}").random() < 0.3
        return [Grade(reward=float(not equal and sample % 2)) for sample in request.samples]

    scripted = scripted_workloads(10_000, duration_s=tailed(seed), rewards=rewards, step_s=step_s, publish_s=publish_s)
    cfg = run_config(
        steps=12,
        batch_groups=batch,
        slots=slots,
        max_age=max_age,
        staleness=policy,
        filter=FilterConfig(ceiling=ceiling, on_ceiling=on_ceiling),  # type: ignore[arg-type]
    )
    try:
        result = run_virtual(lambda: run_scripted(cfg, scripted))
    except BudgetExhausted:  # a whole batch was filtered, and is not to be replaced
        assert on_ceiling == "short"
        return
    assert max(ages(result)) <= math.ceil(max_age)
    assert max(trained_prompts(scripted).values()) == 1
    assert result.accounts.balanced
    assert result.accounts.open == 0


async def test_oversampling_trains_those_that_finish_first_and_ends_the_rest() -> None:
    """ORACLES: the step takes until the B-th of n B is finished; nothing of the rest runs on into the next step."""
    plain = scripted_workloads(10_000, duration_s=tailed())
    slow = await run_scripted(run_config(steps=20, batch_groups=8), plain)
    scripted = scripted_workloads(10_000, duration_s=tailed())
    result = await run_scripted(run_config(steps=20, batch_groups=8, oversample=1.5), scripted)
    assert {len(batch.groups) for batch in scripted.trainer.steps} == {8}
    assert result.seconds < slow.seconds / 1.5
    assert result.dropped == {"surplus": 80}
    assert total(result, "waste/groups") == 80
    assert ages(result) == [0.0] * 20
    assert result.accounts.admitted == 240


async def test_oversampling_ahead_of_training_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"oversample = 1\.5: max_age = 1 generates 2 groups ahead already"):
        await run_scripted(run_config(oversample=1.5, max_age=1), scripted_workloads())


async def test_a_policy_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ConfigError, match="staleness = 'dorp': there is no such policy; did you mean 'drop'"):
        await run_scripted(run_config(staleness="dorp"), scripted_workloads())


async def test_a_sampler_of_ones_own(tmp_path: Path) -> None:
    """The newest first, as somebody may want to try."""
    (tmp_path / "mine.py").write_text(
        "from conductor.core.staleness import Loose\n\n\n"
        "class Newest(Loose):\n"
        "    def select(self, groups, *, wanted, most, version):\n"
        "        ready = [group.lease_id for group in groups if group.ready]\n"
        "        return ready[-wanted:] if len(ready) >= wanted else ()\n\n\n"
        "def newest(max_age, batch):\n"
        "    return Newest()\n"
    )
    scripted = scripted_workloads(100, duration_s=lambda lease: 1.0 + 0.1 * (lease.prompt.position % 6), step_s=5.0)
    cfg = run_config(steps=4, batch_groups=2, max_age=2, staleness="mine.py:newest", job_dir=str(tmp_path))
    result = await run_scripted(cfg, scripted)
    assert [group.lease_id for group in scripted.trainer.steps[1].groups] == ["L4", "L5"]
    assert result.steps == 4
