"""Laws 1 to 5 over whole runs that hypothesis draws: settings, schedules and scripted misfortune together."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from hypothesis import given, note, settings
from hypothesis import strategies as st

from backends.ledgers.memory import MemoryLedger
from backends.sim.grader import alternating
from backends.sim.prompts import ScriptedPrompts
from backends.sim.virtual_time import run_virtual
from conductor.conductor import Conductor
from conductor.config import EvaluationConfig, FilterConfig, RunConfig
from conductor.core.lease import State
from conductor.core.leases import LeaseTable
from conductor.result import RunResult
from protocols.errors import BadPrompt, BudgetExhausted, ConductorError, EngineBusy, Stalled
from protocols.grading import Grade, GradeFault, GradeRequest
from protocols.ledger import Dropped, LedgerEvent
from protocols.rollouts import RolloutLease
from tests.support.runs import open_backend_over, run_config, workloads_of
from tests.support.scripted.hesitant import HesitantTrainer
from tests.support.scripted.workloads import ScriptedWorkloads, scripted_workloads

HORIZON_S = 5_000.0
MOST_POSITIONS = 100

TROUBLES = ("equal", "equal", "equal", "busy", "bad prompt", "unreadable", "one reward", "grader lost", "always busy")
"""What may become of a prompt: ``busy`` and ``grader lost`` are over at the second attempt."""


@dataclass(frozen=True, kw_only=True)
class Fate:
    """What becomes of one prompt."""

    trouble: str
    seconds: float
    grade_s: float


@dataclass(frozen=True, kw_only=True)
class World:
    """One run.

    Attributes:
        fates: Of the prompts, in turns.
        idle_steps: Numbers of the train steps that change nothing, from 1.
        count, epochs: Prompts of an epoch, and passes over them.
        schedule: Seed of the order in which ready tasks run.
    """

    cfg: RunConfig
    fates: Sequence[Fate]
    idle_steps: frozenset[int]
    count: int
    epochs: int
    step_s: float
    publish_s: float
    schedule: int

    def fate(self, position: int) -> Fate:
        return self.fates[position % len(self.fates)]


configs = st.builds(
    run_config,
    steps=st.integers(1, 6),
    batch_groups=st.integers(1, 5),
    max_age=st.integers(0, 4),
    slots=st.none() | st.integers(1, 8),
    remainder=st.sampled_from(["train", "drop", "carry"]),
    attempts=st.sampled_from([2, 1]),
    max_dropped=st.sampled_from([1.0, 1.0, 0.3]),
    filter=st.builds(
        FilterConfig,
        equal_rewards=st.sampled_from(["refill", "refill", "keep"]),
        ceiling=st.sampled_from([0, 1, 3, None]),
        on_ceiling=st.sampled_from(["short", "keep", "fail"]),
    ),
    evaluation=st.none()
    | st.builds(
        EvaluationConfig,
        every=st.integers(0, 3),
        size=st.none() | st.integers(1, 6),
        samples=st.integers(1, 3),
        slots=st.none() | st.integers(1, 3),
    ),
)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    cfg = draw(configs)
    fewest = cfg.batch_groups if cfg.remainder == "drop" else 1  # fewer are refused at the start
    count = draw(st.integers(fewest, 12))
    troubles = draw(st.lists(st.sampled_from(TROUBLES), min_size=1, max_size=2))
    fates = st.builds(
        Fate,
        trouble=st.sampled_from(["none", "none", *troubles]),
        seconds=st.sampled_from([1.0, 0.0, 1.5, 7.0]),
        grade_s=st.sampled_from([0.0, 0.5, 3.0]),
    )
    return World(
        cfg=cfg,
        count=count,
        epochs=draw(st.integers(1, 5)),
        fates=draw(st.lists(fates, min_size=1, max_size=10)),
        idle_steps=draw(st.frozensets(st.integers(1, 6), max_size=1)),
        step_s=draw(st.sampled_from([1.0, 0.0, 10.0])),
        publish_s=draw(st.sampled_from([0.0, 0.5, 15.0])),
        schedule=draw(st.integers(0, 1000)),
    )


def build(world: World) -> ScriptedWorkloads:
    def failure(lease: RolloutLease) -> ConductorError | None:
        trouble = world.fate(lease.prompt.position).trouble
        if trouble == "always busy" or (trouble == "busy" and lease.attempt == 0):
            return EngineBusy(engine="e", waiting=1)
        return BadPrompt("bad") if trouble == "bad prompt" else None

    def rewards(request: GradeRequest) -> list[Grade | GradeFault]:
        trouble = world.fate(request.prompt.position).trouble
        if trouble == "grader lost" and request.attempt == 0:
            raise EngineBusy(engine="grader", waiting=1)
        if trouble == "equal":
            return [Grade(reward=1.0) for _ in request.samples]
        if trouble == "one reward":
            fault = GradeFault(kind="raised", detail="ZeroDivisionError")
            return [Grade(reward=1.0), *[fault] * (len(request.samples) - 1)]
        return alternating(request)

    unreadable = [position for position in range(MOST_POSITIONS) if world.fate(position).trouble == "unreadable"]
    scripted = scripted_workloads(
        ScriptedPrompts(world.count, epochs=world.epochs, unreadable=unreadable),
        duration_s=lambda lease: world.fate(lease.prompt.position).seconds,
        failure=failure,
        rewards=rewards,
        publish_s=world.publish_s,
    )
    return replace(scripted, trainer=HesitantTrainer(scripted.payloads, step_s=world.step_s, idle=world.idle_steps))


@given(worlds())
@settings(max_examples=500, derandomize=True)
def test_every_run_keeps_the_laws(world: World) -> None:
    """Laws 1 to 5, I01, I14, I36, I42, I55, I56, I64: it ends, in time, and every group is where the rules say."""
    scripted, ledger = build(world), MemoryLedger()
    try:
        result = run_virtual(lambda: run(world, scripted, ledger), seed=world.schedule, horizon_s=HORIZON_S)
    except (BudgetExhausted, Stalled) as exc:
        note(f"{exc}")
        assert_may_end_early(world, exc)
        result = None
    batches = [[int(group.lease_id[1:]) for group in batch.groups] for batch in scripted.trainer.steps]
    note(f"batches {batches}")
    assert_books(world, ledger._events, scripted, result)
    assert_batches(world, scripted, ledger._events)
    if result is not None:
        assert_finished(world, scripted, result)


async def run(world: World, scripted: ScriptedWorkloads, ledger: MemoryLedger) -> RunResult:
    workloads = replace(workloads_of(scripted, ledger), evaluation_prompts=ScriptedPrompts(4))
    async with open_backend_over(scripted) as backend:
        return await Conductor.run(world.cfg, backend=backend, workloads=workloads)


def assert_may_end_early(world: World, error: ConductorError) -> None:
    """A run is given up only for what its prompts or its trainer did."""
    assert error.exit_code == 3
    troubles = {fate.trouble for fate in world.fates}
    if isinstance(error, Stalled):
        assert any(text in str(error) for text in ("no step was trained", "trained nothing"))
        return
    assert isinstance(error, BudgetExhausted)
    blamed = {
        "attempts": troubles & {"busy", "always busy", "grader lost"},
        "retries": troubles & {"grader lost"},
        "max_dropped": troubles & {"bad prompt", "one reward"} or world.idle_steps,
        "filter.ceiling": troubles & {"equal"} and world.cfg.filter.on_ceiling != "keep",
        "prompts": troubles & {"unreadable"},
    }
    assert blamed[error.field]


def assert_books(
    world: World, events: Sequence[LedgerEvent], scripted: ScriptedWorkloads, result: RunResult | None
) -> None:
    """Laws 1, 2 and 5: the record proves the accounts, nothing is trained twice, nothing stays."""
    table = LeaseTable()
    for event in events:
        table.apply(event)
        assert sum(lease.state in {State.ADMITTED, State.GENERATING} for lease in table) <= world.cfg.slots_in_flight
    assert table.accounts.balanced
    if result is not None:
        assert table.accounts == result.accounts
        assert table.accounts.open == 0
    trained = Counter(group.lease_id for batch in scripted.trainer.steps for group in batch.groups)
    assert all(times == 1 for times in trained.values())
    assert table.accounts.committed == len(trained)
    assert scripted.executor.live == frozenset()
    assert not scripted.payloads.held
    if result is not None:
        attempts = {lease.prefix for lease in scripted.executor.leases if not lease.lease_id.startswith("E")}
        assert attempts <= set(scripted.payloads.released), "a payload was kept until the run ended"
        assert_evaluations(world, scripted, result)


def assert_evaluations(world: World, scripted: ScriptedWorkloads, result: RunResult) -> None:
    """DESIGN.md: each is of one version, none has two, the last one served has one, and all prompts are told of."""
    evaluation = world.cfg.evaluation
    if evaluation is None:
        assert not result.evaluations
        return
    versions = [record.step for record in result.evaluations]
    assert versions == sorted(set(versions))
    asked = {lease.lease_id for lease in scripted.executor.leases if lease.lease_id.startswith("E")}
    assert f"E{result.steps}/0" in asked
    prompts = min(evaluation.size or 4, 4)
    for record in result.evaluations:
        assert record.metrics["eval/prompts"] + record.metrics["eval/failed"] == prompts
        assert record.metrics["eval/samples"] + record.metrics["eval/masked"] <= prompts * evaluation.samples
    failed = {lease_id.split("/")[0] for lease_id in asked} - {f"E{version}" for version in versions}
    assert result.failures.get("evaluation", 0) == len(failed)


def assert_batches(world: World, scripted: ScriptedWorkloads, events: Sequence[LedgerEvent]) -> None:
    """I55, I64: a batch is full, unless its epoch ended or groups past the ceiling left it short."""
    cfg = world.cfg
    epochs = epochs_of(scripted, world.count)
    batches = [[epochs[group.lease_id] for group in batch.groups] for batch in scripted.trainer.steps]
    assert all(0 < len(batch) <= cfg.batch_groups for batch in batches)
    if cfg.remainder != "carry":
        assert all(len(set(batch)) == 1 for batch in batches), "a batch mixes epochs"
    if cfg.remainder == "drop":
        left = Counter(epochs[event.lease_id] for event in events if is_remainder(event))
        assert all(groups < cfg.batch_groups for groups in left.values()), "a full batch was dropped"
    if cfg.filter.equal_rewards == "keep" or cfg.filter.on_ceiling != "short":
        assert_short_only_at_the_end(world, batches)


def assert_short_only_at_the_end(world: World, batches: list[list[int]]) -> None:
    size = world.cfg.batch_groups
    if world.cfg.remainder == "drop":
        assert all(len(batch) == size for batch in batches)
    elif world.cfg.remainder == "carry":
        assert all(len(batch) == size for batch in batches[:-1])
    else:
        for _, epoch in groupby(batches, key=lambda batch: batch[0]):
            assert all(len(batch) == size for batch in list(epoch)[:-1])


def assert_finished(world: World, scripted: ScriptedWorkloads, result: RunResult) -> None:
    """Laws 3 and 4, I56: all steps are taken unless the prompts ended, and at 0 nothing is old."""
    assert result.steps == len(scripted.trainer.steps)
    assert result.steps <= world.cfg.steps
    if result.steps < world.cfg.steps:
        assert scripted.prompts._position == world.count * world.epochs
    if world.cfg.max_age == 0:
        assert [record.metrics["age/max"] for record in result.metrics] == [0.0] * result.steps


def epochs_of(scripted: ScriptedWorkloads, count: int) -> dict[str, int]:
    return {lease.lease_id: lease.prompt.position // count for lease in scripted.executor.leases}


def is_remainder(event: LedgerEvent) -> bool:
    return isinstance(event, Dropped) and event.reason == "remainder"
