"""Evaluations beside the training: pinned to a version, in accounts of their own, and no danger to the run."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from anyio.lowlevel import checkpoint

from backends.ledgers.memory import MemoryLedger
from backends.sim.grader import ScriptedGrader
from backends.sim.prompts import ScriptedPrompts
from backends.sim.virtual_time import run_virtual
from conductor.conductor import Conductor
from conductor.config import CheckpointConfig, Deadlines, EvaluationConfig, RunConfig
from conductor.core.evaluation import Evaluation, due, evaluation_seed
from conductor.past import evaluations_of, rebuild
from conductor.result import RunResult
from protocols.errors import BadPrompt, ConductorError, ConfigError, EngineBusy, InvariantError, PortFailed, UserError
from protocols.grading import Grade, GradeFault, GradeRequest
from protocols.inference import AbortReport, Sampling, WeightsManifest
from protocols.ledger import Evaluated, Resumed
from protocols.messages import WeightVersion
from protocols.pauses import pause_s
from protocols.rollouts import GroupReceipt, RolloutLease
from protocols.tracking import StepRecord
from protocols.training import StageRequest
from tests.support.lives import Lives, holds
from tests.support.runs import open_backend_over, run_config, workloads_of
from tests.support.scripted.workloads import ScriptedWorkloads, scripted_workloads
from tests.support.texts import exactly


def evaluated(lease: RolloutLease) -> bool:
    return lease.lease_id.startswith("E")


def slowly(lease: RolloutLease) -> float:
    return 5.0 if evaluated(lease) else 1.0


class Trackers:
    """One tracker that keeps what it is told."""

    def __init__(self) -> None:
        self.records: list[StepRecord] = []

    async def log(self, record: StepRecord) -> None:
        await checkpoint()
        self.records.append(record)

    async def rewind(self, step: int) -> int:
        await checkpoint()
        return step


async def run(
    cfg: RunConfig,
    scripted: ScriptedWorkloads,
    prompts: ScriptedPrompts | int = 4,
    *,
    ledger: MemoryLedger | None = None,
    tracker: Trackers | None = None,
    grader: ScriptedGrader | None = None,
) -> RunResult:
    source = ScriptedPrompts(prompts) if isinstance(prompts, int) else prompts
    workloads = replace(
        workloads_of(scripted, ledger),
        evaluation_prompts=source,
        evaluation_grader=grader,
        trackers=() if tracker is None else (tracker,),
    )
    async with open_backend_over(scripted) as backend:
        return await Conductor.run(cfg, backend=backend, workloads=workloads)


def config(*, every: int = 2, samples: int = 2, steps: int = 6, **fields: Any) -> RunConfig:
    own = {name: fields.pop(name) for name in ("sampling_", "slots_", "size", "on_failure") if name in fields}
    renamed = {name.rstrip("_"): value for name, value in own.items()}
    return run_config(steps=steps, evaluation=EvaluationConfig(every=every, samples=samples, **renamed), **fields)


def versions(result: RunResult) -> list[int]:
    return [record.step for record in result.evaluations]


def evaluations(scripted: ScriptedWorkloads) -> list[RolloutLease]:
    return [lease for lease in scripted.executor.leases if evaluated(lease)]


@pytest.mark.parametrize("max_age", [0, 1, 3])
@pytest.mark.parametrize(
    ("every", "steps", "expected"), [(2, 6, [2, 4, 6]), (4, 6, [4, 6]), (0, 3, [3]), (9, 3, [3]), (1, 3, [1, 2, 3])]
)
async def test_it_is_evaluated_when_the_job_says_and_at_the_end(
    every: int, steps: int, expected: list[int], max_age: int
) -> None:
    scripted = scripted_workloads(100, duration_s=slowly) if every == 1 else scripted_workloads(100)
    result = await run(config(every=every, steps=steps, max_age=max_age), scripted)
    if max_age and every == 1:  # while one version is evaluated, newer ones overtake the next: the newest is published
        assert versions(result) == [1, 3]
    else:
        assert versions(result) == expected
    for record in result.evaluations:
        assert record.metrics["eval/version"] == record.step
        assert (record.metrics["eval/prompts"], record.metrics["eval/failed"]) == (4.0, 0.0)
        assert (record.metrics["eval/samples"], record.metrics["eval/masked"]) == (8.0, 0.0)
        assert (record.metrics["eval/reward/mean"], record.metrics["eval/reward/best"]) == (0.5, 1.0)


@pytest.mark.parametrize("max_age", [0, 2])
async def test_it_is_pinned_and_training_goes_on_meanwhile(max_age: int) -> None:
    """I70, DESIGN.md: publishing waits for it, nothing else does, and each of its tokens is of its version."""
    scripted = scripted_workloads(100, duration_s=slowly)
    published: list[tuple[float, int]] = []
    trained: list[tuple[float, int]] = []
    publish, step = scripted.inference.publish, scripted.trainer.apply

    async def watch_publish(manifest: WeightsManifest) -> Any:
        published.append((anyio.current_time(), manifest.version))
        return await publish(manifest)

    async def watch_step(dispatch_id: Any) -> Any:
        report = await step(dispatch_id)
        trained.append((anyio.current_time(), report.version))
        return report

    scripted.inference.publish = watch_publish  # type: ignore[method-assign]
    scripted.trainer.apply = watch_step  # type: ignore[method-assign]
    result = await run(config(every=2, steps=4, max_age=max_age, slots_=4), scripted)
    assert [record.metrics["eval/failed"] for record in result.evaluations] == [0.0, 0.0]
    began = next(at for at, version in published if version == 2)
    later = min(at for at, version in published if version > 2)
    assert later == pytest.approx(began + 5.0)
    meanwhile = [version for at, version in trained if began < at < began + 5.0]
    assert meanwhile == ([3] if max_age == 0 else [3, 4])


@pytest.mark.parametrize("max_age", [0, 1])
async def test_the_training_is_what_it_is_without(max_age: int) -> None:
    """Law 4: at 0 it changes no batch; with age allowed, time decides which groups meet in one, as always."""
    plain, beside = scripted_workloads(100), scripted_workloads(100)
    without = await run(run_config(steps=6, max_age=max_age), plain)
    result = await run(config(every=1, max_age=max_age), beside)
    assert max_age or beside.trainer.steps == plain.trainer.steps
    assert result.accounts == without.accounts
    assert result.samples == without.samples


async def test_its_ids_and_its_record_are_its_own() -> None:
    scripted, ledger = scripted_workloads(100), MemoryLedger()
    result = await run(config(), scripted, ledger=ledger)
    ids = [lease.lease_id for lease in evaluations(scripted)]
    assert sorted(ids) == [f"E{version}/{position}" for version in (2, 4, 6) for position in range(4)]
    assert evaluations(scripted)[0].prefix == "policy.1/E2/0/0/"
    events = await ledger.replay()
    assert [event.record for event in events if isinstance(event, Evaluated)] == list(result.evaluations)
    assert rebuild(events).accounts == result.accounts
    assert result.accounts.admitted == 12
    assert not scripted.payloads.held


async def test_its_prompts_and_streams_are_the_same_each_time() -> None:
    """What is compared over time must differ in the weights alone."""
    scripted = scripted_workloads(100)
    await run(config(every=1, steps=3, seed=7), scripted, ScriptedPrompts(3, epochs=None))
    by_version: dict[str, list[Any]] = {}
    for lease in evaluations(scripted):
        by_version.setdefault(lease.lease_id.split("/")[0], []).append((lease.prompt, lease.seed))
    first, *others = by_version.values()
    assert [prompt.position for prompt, _ in first] == [0, 1, 2]
    assert all(other == first for other in others)
    assert {seed for _, seed in first} == {evaluation_seed(7)}
    assert evaluation_seed(7) not in {7, evaluation_seed(8)}


async def test_it_has_sampling_and_rewards_of_its_own() -> None:
    grader = ScriptedGrader(lambda request: [Grade(reward=0.25, parts={"form": 1.0}) for _ in request.samples])
    greedy = Sampling(max_tokens=9, temperature=0.0)
    scripted = scripted_workloads(100)
    result = await run(config(samples=1, sampling_=greedy), scripted, grader=grader)
    assert {lease.sampling for lease in evaluations(scripted)} == {greedy}
    assert {lease.group_size for lease in evaluations(scripted)} == {1}
    assert all(request.lease_id.startswith("L") for request in scripted.grader.requests)
    assert result.evaluations[0].metrics["eval/reward/mean"] == 0.25
    assert result.evaluations[0].metrics["eval/reward/parts/form"] == 1.0


@pytest.mark.parametrize(("size", "asked"), [(None, 5), (3, 3), (7, 5)])
async def test_as_many_prompts_are_drawn_as_the_job_says(size: int | None, asked: int) -> None:
    scripted = scripted_workloads(100)
    result = await run(config(size=size), scripted, 5)
    assert {record.metrics["eval/prompts"] for record in result.evaluations} == {float(asked)}


async def test_no_more_of_it_is_in_flight_than_its_slots() -> None:
    at_once: list[int] = []

    def watch(lease: RolloutLease) -> float:
        at_once.append(len({one.split("/")[2] for one in scripted.executor.live if "/E" in one}))
        return 1.0 + lease.prompt.position % 3

    scripted = scripted_workloads(100, duration_s=watch)
    await run(config(slots_=3), scripted, 20)
    assert max(at_once) == 3


async def test_steps_and_trackers_tell_of_it() -> None:
    scripted, tracker = scripted_workloads(100), Trackers()
    result = await run(config(every=2, steps=4, max_age=1), scripted, tracker=tracker)
    told = [record for record in tracker.records if "eval/version" in record.metrics]
    assert [(record.step, record.metrics["eval/version"]) for record in told] == [(4, 2.0), (4, 4.0)]
    assert [record.step for record in tracker.records] == [1, 2, 3, 4, 4]
    assert set(tracker.records[-1].metrics) == set(result.evaluations[-1].metrics)


async def test_weights_that_are_evaluated_are_lent_as_a_copy() -> None:
    """At ``max_age`` 0 engine and trainer share tensors, and the next step would change what is being evaluated."""
    scripted, asked = scripted_workloads(100), []
    stage = scripted.trainer.stage_weights

    async def watch(request: StageRequest) -> WeightsManifest:
        asked.append(request.exclusive)
        return await stage(request)

    scripted.trainer.stage_weights = watch  # type: ignore[method-assign]
    await run(config(every=2, steps=5), scripted)
    assert asked == [True, True, False, True, False, True]


@pytest.mark.parametrize(("attempts", "failed"), [(2, 0.0), (1, 1.0)])
async def test_a_prompt_that_fails_for_a_moment_is_tried_again(attempts: int, failed: float) -> None:
    def failure(lease: RolloutLease) -> ConductorError | None:
        once = evaluated(lease) and lease.prompt.position == 1 and lease.attempt == 0
        return EngineBusy(engine="e", waiting=1) if once else None

    scripted = scripted_workloads(100, failure=failure)
    result = await run(config(attempts=attempts), scripted)
    assert [record.metrics["eval/failed"] for record in result.evaluations] == [failed] * 3
    assert "policy.1/E2/1/0/" in scripted.executor.aborted or "policy.1/E2/1/" in scripted.executor.aborted
    assert result.failures == {}


async def test_a_prompt_that_fails_again_is_waited_for_longer() -> None:
    """I61: attempts that follow at once are spent before an engine that restarts is back."""
    began: list[float] = []

    def failure(lease: RolloutLease) -> ConductorError | None:
        if not evaluated(lease) or lease.prompt.position != 1:
            return None
        began.append(anyio.current_time())
        return EngineBusy(engine="e", waiting=1) if lease.attempt < 3 else None

    result = await run(config(every=2, steps=2, attempts=4), scripted_workloads(100, failure=failure))
    assert result.evaluations[0].metrics["eval/failed"] == 0.0
    pauses = [later - earlier - 1.0 for earlier, later in pairwise(began)]  # each attempt takes a second
    assert pauses == pytest.approx([pause_s(tries, "E2/1") for tries in (1, 2, 3)])


@pytest.mark.parametrize("error", [BadPrompt("bad"), PortFailed("burnt"), ZeroDivisionError()])
async def test_a_prompt_that_fails_for_good_is_counted(error: Exception) -> None:
    def failure(lease: RolloutLease) -> Any:
        return error if evaluated(lease) and lease.prompt.position == 1 else None

    scripted = scripted_workloads(100, failure=failure)
    result = await run(config(), scripted)
    assert [record.metrics["eval/failed"] for record in result.evaluations] == [1.0] * 3
    assert [record.metrics["eval/prompts"] for record in result.evaluations] == [3.0] * 3
    assert result.accounts.committed == 12


async def test_a_completion_without_a_reward_is_masked() -> None:
    """I61: never a silent 0."""

    def rewards(request: GradeRequest) -> Sequence[Grade | GradeFault]:
        return [Grade(reward=1.0), GradeFault(kind="raised", detail="")]

    scripted = scripted_workloads(100)
    result = await run(config(), scripted, grader=ScriptedGrader(rewards))
    metrics = result.evaluations[0].metrics
    assert (metrics["eval/reward/mean"], metrics["eval/samples"], metrics["eval/masked"]) == (1.0, 4.0, 4.0)


async def test_prompts_without_any_reward_have_failed() -> None:
    """A reward that fails on every sample left an evaluation without a mean, and nothing said so."""
    broken = ScriptedGrader(lambda request: [GradeFault(kind="raised", detail="KeyError")] * len(request.samples))
    scripted = scripted_workloads(100)
    result = await run(config(), scripted, grader=broken)
    assert (result.evaluations, result.failures) == ((), {"evaluation": 3})
    assert not scripted.payloads.held


def all_fail(lease: RolloutLease) -> ConductorError | None:
    return BadPrompt("bad") if evaluated(lease) else None


async def test_an_evaluation_that_comes_to_nothing_is_counted_and_the_run_goes_on() -> None:
    scripted = scripted_workloads(100, failure=all_fail)
    result = await run(config(), scripted)
    assert (result.steps, result.evaluations, result.failures) == (6, (), {"evaluation": 3})


async def test_it_ends_the_run_where_the_job_says_so() -> None:
    scripted = scripted_workloads(100, failure=all_fail)
    with pytest.raises(PortFailed, match="the evaluation of v2 failed: none of its 4 prompts could be graded"):
        await run(config(on_failure="fail"), scripted)
    assert scripted.executor.live == frozenset()


@pytest.mark.parametrize("on_failure", ["count", "fail"])
async def test_an_evaluation_that_hangs_is_cut_and_aborted(on_failure: str) -> None:
    """Publishing waits for it, and so would the run."""
    scripted = scripted_workloads(100, duration_s=lambda lease: math.inf if evaluated(lease) else 1.0)
    cfg = config(every=2, steps=3, on_failure=on_failure, deadlines=Deadlines(group=50.0, reward=5.0, evaluation=60.0))
    if on_failure == "fail":
        with pytest.raises(PortFailed, match="evaluation of v2 did not end within 60 s"):
            await run(cfg, scripted)
    else:
        result = await run(cfg, scripted)
        assert (result.steps, result.failures["evaluation"]) == (3, 2)
        assert "policy.1/E2/" in scripted.executor.aborted
    assert scripted.executor.live == frozenset()
    assert not scripted.payloads.held


async def test_what_proves_us_wrong_ends_the_run_all_the_same() -> None:
    scripted = scripted_workloads(100)
    generate = scripted.executor.generate

    async def confused(lease: RolloutLease) -> GroupReceipt:
        receipt = await generate(lease)
        return msgspec.structs.replace(receipt, attempt=7) if evaluated(lease) else receipt

    scripted.executor.generate = confused  # type: ignore[method-assign]
    with pytest.raises(InvariantError, match="E2/0 attempt 0 was answered with the receipt of"):
        await run(config(), scripted)


async def test_tokens_of_other_weights_are_no_evaluation() -> None:
    """I31: an engine that was reloaded behind our back."""
    scripted = scripted_workloads(100, duration_s=slowly)

    async def reload() -> None:
        while not evaluations(scripted):  # noqa: ASYNC110 - virtual time
            await anyio.sleep(0.5)
        await anyio.sleep(1.0)
        scripted.inference._versions = dict.fromkeys(scripted.inference._versions, WeightVersion(77))

    async with anyio.create_task_group() as group:
        group.start_soon(reload)
        result = await run(config(every=2, steps=2, slots_=4), scripted)
    assert result.failures == {"evaluation": 1}


@pytest.mark.parametrize("after_s", [4.5, 7.5, 9.5])
async def test_a_run_that_is_stopped_leaves_nothing_of_it(after_s: float) -> None:
    """Law 5: its requests are aborted like the others', also where no group is open any more."""
    scripted = scripted_workloads(100, duration_s=lambda lease: 100.0 if evaluated(lease) else 1.0)
    with anyio.move_on_after(after_s) as scope:
        await run(config(every=2, steps=2 if after_s > 9 else 4), scripted)
    assert scope.cancelled_caught
    assert evaluations(scripted)
    assert scripted.executor.live == frozenset()
    assert "policy.1/" in scripted.executor.aborted
    assert not scripted.payloads.held


async def test_a_source_that_never_ends_needs_a_size() -> None:
    class Endless(ScriptedPrompts):
        async def epoch_length(self) -> int | None:
            await checkpoint()
            return None

    why = "its prompts know no epoch, so there is no end to them; say how many are to be drawn"
    with pytest.raises(ConfigError, match=exactly(f"the job has 1 problem:\n  evaluation.size: {why}")):
        await run(config(), scripted_workloads(100), Endless(3, epochs=None))
    result = await run(config(size=2), scripted_workloads(100), Endless(3, epochs=None))
    assert result.evaluations[0].metrics["eval/prompts"] == 2.0


async def test_a_source_without_a_readable_prompt_is_refused_before_anything_is_trained() -> None:
    scripted = scripted_workloads(100)
    with pytest.raises(
        UserError,
        match=exactly("evaluation.prompts gives no prompt that can be read; the log names what is wrong with each"),
    ):
        await run(config(), scripted, ScriptedPrompts(2, unreadable=(0, 1)))
    assert not scripted.trainer.steps
    result = await run(config(), scripted_workloads(100), ScriptedPrompts(3, unreadable=(0,)))
    assert result.evaluations[0].metrics["eval/prompts"] == 2.0


@pytest.mark.parametrize("die_at", [25, 30, 35, 40, 45, 50])
def test_a_run_that_is_killed_evaluates_what_it_had_not_and_nothing_twice(tmp_path: Path, die_at: int) -> None:
    """Law 1, across kill and restart: each time that one is due there is one in the end."""
    prompts = [ScriptedPrompts(3) for _ in range(3)]
    cfg = config(every=2, steps=6, max_age=1, checkpoint=CheckpointConfig(every=1))
    lives = Lives(cfg=cfg, build=lambda: scripted_workloads(100), folder=tmp_path, evaluated_on=prompts.pop)
    run_virtual(lambda: lives.live(holds(die_at)))
    result = run_virtual(lives.live)
    assert result is not None
    # a checkpoint may lie past the version that was due: the next one that is served is evaluated in its place
    assert [version // 2 for version in versions(result)] == [1, 2, 3]
    assert result.accounts.committed == 12


@pytest.mark.parametrize("staleness", ["wait", "drop", "partial"])
async def test_while_a_version_is_evaluated_no_group_grows_too_old(staleness: str) -> None:
    """Publishing waits, and with it the interrupts of ``partial``: nothing is begun anew under the same weights."""
    scripted = scripted_workloads(
        100, duration_s=lambda lease: 40.0 if evaluated(lease) else 1.0 + lease.prompt.position % 3
    )
    result = await run(config(every=1, steps=6, max_age=1, staleness=staleness), scripted)
    assert result.steps == 6
    assert max(record.metrics["age/max"] for record in result.metrics) <= 1
    assert all(record.metrics["eval/failed"] == 0 for record in result.evaluations)
    assert len([lease for lease in scripted.executor.leases if not evaluated(lease)]) <= 2 * 6 + 4


@pytest.mark.parametrize(
    ("every", "evaluated_", "version", "expected"),
    [
        (0, 0, 9, False),
        (3, None, 2, False),
        (3, None, 3, True),
        (3, 0, 2, False),
        (3, 0, 3, True),
        (3, 3, 5, False),
        (3, 2, 7, True),
        (3, 7, 8, False),
    ],
)
def test_one_is_due_at_the_first_version_served_since(
    every: int, evaluated_: int | None, version: int, *, expected: bool
) -> None:
    """Publishing coalesces: the version that was due may never be served."""
    first = WeightVersion(10)
    found = due(
        every,
        first=first,
        evaluated=None if evaluated_ is None else WeightVersion(first + evaluated_),
        version=WeightVersion(first + version),
    )
    assert found is expected


def test_its_accounts_balance() -> None:
    evaluation = Evaluation(version=WeightVersion(1), prompts=5, began=0.0, running=2, failed=1)
    assert evaluation.waiting == 2


async def test_what_nobody_confirmed_is_aborted_again_when_the_run_ends() -> None:
    """Law 5: no group is open any more, and a request of an evaluation may still run."""
    scripted = scripted_workloads(100, duration_s=lambda lease: math.inf if evaluated(lease) else 1.0)
    abort = scripted.executor.abort

    async def reluctantly(prefix: str) -> AbortReport:
        report = await abort(prefix)
        return AbortReport(unconfirmed=frozenset({"e1"})) if "/E" in prefix else report

    scripted.executor.abort = reluctantly  # type: ignore[method-assign]
    cfg = config(every=0, steps=2, deadlines=Deadlines(group=50.0, reward=5.0, evaluation=60.0))
    result = await run(cfg, scripted)
    assert result.failures["evaluation"] == 1
    assert scripted.executor.aborted[-1] == "policy.1/"


@pytest.mark.parametrize("compact_events", [0, 5])
@pytest.mark.parametrize("first", [30, 38, 46, 54, 62])
def test_evaluations_count_once_over_many_lives(tmp_path: Path, first: int, compact_events: int) -> None:
    """One that was done behind the checkpoint that a resume goes back to is done again, and told of once."""
    checkpoints = CheckpointConfig(every=3, compact_events=compact_events)
    cfg = config(every=2, steps=9, max_age=1, checkpoint=checkpoints)
    lives = Lives(
        cfg=cfg, build=lambda: scripted_workloads(100), folder=tmp_path, evaluated_on=lambda: ScriptedPrompts(3)
    )
    run_virtual(lambda: lives.live(holds(first)))
    run_virtual(lambda: lives.live(holds(len(lives.events) + 25)))
    result = run_virtual(lives.live)
    assert result is not None
    assert versions(result) == sorted(set(versions(result)))
    assert [version // 2 for version in versions(result)] == [1, 2, 3, 4, 4]
    assert result.steps == 9


def test_an_evaluation_behind_the_checkpoint_of_a_resume_does_not_count() -> None:
    def done(version: int, reward: float) -> Evaluated:
        return Evaluated(record=StepRecord(step=version, metrics={"eval/reward/mean": reward}))

    events = [done(2, 0.1), done(4, 0.2), Resumed(version=WeightVersion(3)), done(4, 0.3)]
    assert evaluations_of(events) == [done(2, 0.1), done(4, 0.3)]
