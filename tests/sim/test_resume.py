"""A run that is killed anywhere and resumed trains exactly what one trains that is not."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import msgspec
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from backends.sim.grader import alternating
from backends.sim.prompts import ScriptedPrompts
from backends.sim.virtual_time import run_virtual
from conductor.config import CheckpointConfig, FilterConfig, RunConfig
from conductor.core.leases import LeaseTable
from conductor.past import rebuild
from conductor.result import RunResult
from protocols.errors import BadPrompt, ConductorError, ConfigError, EngineBusy, UserError
from protocols.grading import Grade, GradeFault, GradeRequest
from protocols.ledger import (
    Admitted,
    Checkpointed,
    Committed,
    Compacted,
    LedgerEvent,
    Restored,
    Resumed,
    RunStarted,
    Stepped,
)
from protocols.messages import LeaseId
from protocols.rollouts import RolloutLease
from tests.support.lives import Lives, holds
from tests.support.runs import run_config
from tests.support.scripted.workloads import ScriptedWorkloads, scripted_workloads
from tests.support.texts import exactly

Build = Callable[[], ScriptedWorkloads]


def trained(events: Sequence[LedgerEvent]) -> list[list[int]]:
    """Return the prompts of each step that counts, in order; a second opinion on what the record says."""
    positions: dict[LeaseId, int] = {}
    steps: list[tuple[int, list[int]]] = []
    for event in events:
        if isinstance(event, Admitted):
            positions[event.lease_id] = event.prompt.position
        elif isinstance(event, Committed):
            steps.append((event.version, [positions[lease_id] for lease_id in event.leases]))
        elif isinstance(event, Resumed):
            steps = [step for step in steps if step[0] <= event.version]
    return [prompts for _, prompts in steps]


def troubled(request: GradeRequest) -> list[Grade | GradeFault]:
    """Give equal rewards to every third prompt, and none to one sample of every seventh."""
    position = request.prompt.position
    if position % 3 == 1:
        return [Grade(reward=1.0) for _ in request.samples]
    grades = alternating(request)
    if position % 7 == 2:
        grades[0] = GradeFault(kind="raised", detail="ZeroDivisionError")
    return grades


def failing(lease: RolloutLease) -> ConductorError | None:
    """Refuse one prompt for good, and another once in each life."""
    if lease.prompt.position == 5:
        return BadPrompt("bad")
    return EngineBusy(engine="e", waiting=1) if lease.prompt.position == 8 and lease.attempt % 2 == 0 else None


def uneven(lease: RolloutLease) -> float:
    return 1.0 + 0.1 * (lease.prompt.position % 3)


def build_troubled() -> ScriptedWorkloads:
    prompts = ScriptedPrompts(11, epochs=4, unreadable={3})
    return scripted_workloads(prompts, duration_s=uneven, rewards=troubled, failure=failing)


TROUBLED = run_config(
    steps=6,
    batch_groups=3,
    group_size=3,
    attempts=2,
    checkpoint=CheckpointConfig(every=2),
    filter=FilterConfig(ceiling=1, on_ceiling="short"),
)


def reference(cfg: RunConfig, build: Build) -> tuple[RunResult, Lives]:
    """Run without a kill."""
    with TemporaryDirectory() as folder:
        lives = Lives(cfg=cfg, build=build, folder=Path(folder))
        result = run_virtual(lives.live)
    assert result is not None
    return result, lives


def killed(cfg: RunConfig, build: Build, deaths: Sequence[int], folder: Path) -> tuple[RunResult, Lives]:
    """Run, killed each time the record has grown by so many events; then to the end."""
    lives = Lives(cfg=cfg, build=build, folder=folder)
    for more in deaths:
        result = run_virtual(lambda more=more: lives.live(holds(len(lives.events) + more)))
        rebuild(lives.events)
        if result is not None:
            return result, lives
    result = run_virtual(lives.live)
    assert result is not None
    return result, lives


def assert_same(expected: tuple[RunResult, Lives], found: tuple[RunResult, Lives]) -> None:
    """Laws 1, 2 and 4 over all lives."""
    (result, lives), (again, others) = expected, found
    assert others.trainer.weights == lives.trainer.weights
    assert again.steps == result.steps
    assert (again.accounts, again.samples, again.dropped) == (result.accounts, result.samples, result.dropped)
    assert [record.step for record in again.metrics] == [record.step for record in result.metrics]
    names = ("reward/mean", "groups/trained", "groups/filtered", "age/max")
    for name in names:
        assert [r.metrics.get(name) for r in again.metrics] == [r.metrics.get(name) for r in result.metrics], name
    table = rebuild(others.events)
    assert table.accounts == result.accounts
    assert table.sample_accounts == rebuild(lives.events).sample_accounts
    assert table.sample_accounts.balanced


@pytest.mark.parametrize("durability", ["leases", "groups"])
def test_killed_behind_any_event_it_trains_what_it_would_have_trained(
    tmp_path: Path, durability: Literal["leases", "groups"]
) -> None:
    """I37, I38, I40, I47, I49, I52: filtered, dropped, retried and unreadable prompts, epochs and short batches."""
    cfg = replace_checkpoint(TROUBLED, CheckpointConfig(every=2, durability=durability))
    restored = 0
    expected = reference(cfg, build_troubled)
    order = trained(expected[1].events)
    kinds = set()
    for number in range(1, len(expected[1].events)):
        kinds.add(type(expected[1].events[number - 1]))
        folder = tmp_path / str(number)
        folder.mkdir()
        found = killed(cfg, build_troubled, [number], folder)
        assert_same(expected, found)
        assert trained(found[1].events) == order, number
        assert not found[1].spooled, number
        restored += sum(isinstance(event, Restored) for event in found[1].events)
    assert (restored > 0) == (durability == "groups")
    assert kinds >= {RunStarted, Admitted, Committed, Checkpointed, Stepped}


def test_stopped_at_any_time_it_has_saved_what_it_trained_and_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    """I57, law 4: also in the middle of a step, whose groups and whose ceiling are those of the batch that comes."""
    expected = reference(TROUBLED, build_troubled)
    for number in range(1, 60):
        folder = tmp_path / str(number)
        folder.mkdir()
        lives = Lives(cfg=TROUBLED, build=build_troubled, folder=folder)
        result = run_virtual(lambda lives=lives, number=number: lives.live(stop_after_s=0.37 * number))
        if result is not None:
            break
        trained_before = len(trained(lives.events))
        result = run_virtual(lives.live)
        assert result is not None
        resumed = [event.version for event in lives.events if isinstance(event, Resumed)]
        assert resumed == [trained_before], number
        assert_same(expected, (result, lives))
    assert number > 20


def test_killed_over_and_over_it_still_ends(tmp_path: Path) -> None:
    """Many short lives: no attempt is used up, no checkpoint lost, no step repeated for ever."""
    expected = reference(TROUBLED, build_troubled)
    found = killed(TROUBLED, build_troubled, [29] * 40, tmp_path)
    assert_same(expected, found)


def test_a_compacted_record_resumes_to_the_same_end(tmp_path: Path) -> None:
    """Issue C: the record is summed up after each checkpoint, and killed right behind that."""
    cfg = replace_checkpoint(TROUBLED, CheckpointConfig(every=1, keep=1, compact_events=20))
    expected = reference(TROUBLED, build_troubled)
    found = killed(cfg, build_troubled, [60, 35, 35, 50], tmp_path)
    assert any(isinstance(event, Compacted) for event in found[1].events)
    assert_same(expected, found)
    assert len(found[1].events) < len(expected[1].events) / 2


@pytest.mark.parametrize("behind", range(8))
def test_killed_right_behind_a_compaction_it_goes_on_from_the_checkpoint_that_asked_for_it(
    tmp_path: Path, behind: int
) -> None:
    """Found by the kill drill: the steps stood behind the summary and took the place of what it went back to."""
    cfg = replace_checkpoint(TROUBLED, CheckpointConfig(every=2, keep=1, compact_events=40))
    expected = reference(TROUBLED, build_troubled)
    lives = Lives(cfg=cfg, build=build_troubled, folder=tmp_path)

    def fatal(events: Sequence[LedgerEvent]) -> bool:
        compacted = [index for index, event in enumerate(events) if isinstance(event, Compacted)]
        return bool(compacted) and len(events) > compacted[0] + behind

    run_virtual(lambda: lives.live(fatal))
    result = run_virtual(lives.live)
    assert result is not None
    assert_same(expected, (result, lives))


def replace_checkpoint(cfg: RunConfig, checkpoint: CheckpointConfig) -> RunConfig:
    return msgspec.structs.replace(cfg, checkpoint=checkpoint)


configs = st.builds(
    run_config,
    steps=st.integers(1, 6),
    batch_groups=st.integers(1, 4),
    slots=st.none() | st.integers(1, 5),
    remainder=st.sampled_from(["train", "drop", "carry"]),
    max_dropped=st.just(1.0),
    checkpoint=st.builds(
        CheckpointConfig,
        every=st.integers(0, 3),
        keep=st.integers(1, 3),
        compact_events=st.sampled_from([0, 0, 15]),
        durability=st.sampled_from(["leases", "groups"]),
    ),
    filter=st.builds(
        FilterConfig,
        equal_rewards=st.sampled_from(["refill", "keep"]),
        ceiling=st.sampled_from([0, 1, 3, None]),
        on_ceiling=st.sampled_from(["short", "keep"]),
    ),
)


@given(cfg=configs, deaths=st.lists(st.integers(1, 60), max_size=4), epochs=st.integers(1, 3), count=st.integers(4, 9))
@settings(max_examples=60, derandomize=True)
def test_any_job_killed_anywhere_trains_the_same(cfg: RunConfig, deaths: list[int], epochs: int, count: int) -> None:
    """Laws 1, 2 and 4 across kills, for jobs at max_age 0 that hypothesis draws."""

    def build() -> ScriptedWorkloads:
        return scripted_workloads(ScriptedPrompts(count, epochs=epochs), duration_s=uneven, rewards=troubled)

    try:
        expected = reference(cfg, build)
    except ConductorError as exc:
        note(f"it cannot be run: {exc}")
        return
    with TemporaryDirectory() as folder:
        assert_same(expected, killed(cfg, build, deaths, Path(folder)))


@pytest.mark.parametrize("max_age", [1, 3])
def test_an_asynchronous_run_keeps_the_order_of_its_prompts_and_loses_none(tmp_path: Path, max_age: int) -> None:
    """Issue C: with age allowed, time decides the batches; the prompts and their order are the same."""
    cfg = run_config(steps=8, batch_groups=3, max_age=max_age, checkpoint=CheckpointConfig(every=3))
    result, lives = killed(cfg, lambda: scripted_workloads(100, duration_s=uneven), [40, 31, 77], tmp_path)
    assert result.accounts.open == 0
    prompts = [event.prompt.position for event in lives.events if isinstance(event, Admitted)]
    assert prompts == list(range(len(prompts)))
    flat = [position for step in trained(lives.events) for position in step]
    assert len(flat) == len(set(flat)) == 24
    assert max(record.metrics["age/max"] for record in result.metrics) <= max_age


def test_other_data_are_refused(tmp_path: Path) -> None:
    """I52: the data changed between two lives, and nobody noticed."""
    lives = Lives(cfg=TROUBLED, build=build_troubled, folder=tmp_path)
    run_virtual(lambda: lives.live(holds(30)))
    lives.build = lambda: scripted_workloads(ScriptedPrompts(12, epochs=4))
    why = "the data, or their order, are not what the run began with"
    text = f"  prompts: {why}; put the old data back, or begin a new run in another folder"
    with pytest.raises(ConfigError, match=exactly(f"the job has 1 problem:\n{text}")):
        run_virtual(lives.live)


@pytest.mark.parametrize("lost", [1, 20, 75])
def test_a_record_that_lost_its_end_goes_on_from_a_checkpoint_that_it_knows(tmp_path: Path, lost: int) -> None:
    """A power failure: the checkpoint was on the disk and the end of the record was not."""
    expected = reference(TROUBLED, build_troubled)
    lives = Lives(cfg=TROUBLED, build=build_troubled, folder=tmp_path)
    run_virtual(lambda: lives.live(holds(118)))
    before = sum(isinstance(event, Checkpointed) for event in lives.events)
    del lives.events[-lost:]
    if lost == 75:
        assert sum(isinstance(event, Checkpointed) for event in lives.events) < before
    result = run_virtual(lives.live)
    assert result is not None
    assert_same(expected, (result, lives))


def test_a_run_whose_checkpoints_are_gone_says_so(tmp_path: Path) -> None:
    """It must not begin anew in silence: its groups of then are final."""
    lives = Lives(cfg=TROUBLED, build=build_troubled, folder=tmp_path)
    run_virtual(lambda: lives.live(holds(118)))
    assert lives._run_dir is not None
    shutil.rmtree(lives._run_dir / "checkpoints")
    with pytest.raises(
        UserError,
        match=exactly(
            "the run in ... cannot go on without its checkpoints: step-...; put them back, or begin "
            "a new run in another folder"
        ),
    ):
        run_virtual(lives.live)


def test_a_finished_run_that_is_resumed_is_finished(tmp_path: Path) -> None:
    """Killed between its last checkpoint and its end, it takes no step more; with more steps it trains on."""
    lives = Lives(cfg=TROUBLED, build=build_troubled, folder=tmp_path)
    first, second = run_virtual(lives.live), run_virtual(lives.live)
    assert first is not None
    assert second is not None
    assert (second.steps, second.accounts, second.samples) == (first.steps, first.accounts, first.samples)
    lives.cfg = msgspec.structs.replace(lives.cfg, steps=8)
    third = run_virtual(lives.live)
    assert third is not None
    assert third.steps == 8
    assert_same(reference(lives.cfg, build_troubled), (third, lives))


def test_a_table_is_a_function_of_the_record() -> None:
    """ADR 1: a replay at any prefix is the live table of that moment; here of whole runs."""
    _, lives = reference(TROUBLED, build_troubled)
    table = LeaseTable()
    for number, event in enumerate(lives.events, start=1):
        table.apply(event)
        assert table.compacted() == rebuild(lives.events[:number]).compacted()
