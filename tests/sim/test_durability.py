"""Finished groups outlive a kill and a stop: `durability = "groups"`."""

import math
from collections.abc import Sequence
from itertools import chain, cycle
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import event as note_event
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.sim.grader import alternating
from backends.sim.prompts import ScriptedPrompts
from backends.sim.virtual_time import run_virtual
from conductor.config import CheckpointConfig, FilterConfig, RunConfig
from conductor.core.lease import State
from conductor.past import rebuild
from protocols.grading import Grade, GradeFault, GradeRequest
from protocols.ledger import Admitted, Checkpointed, Claimed, Graded, LedgerEvent, Readmitted, Restored, Resumed
from protocols.messages import LeaseId
from protocols.rollouts import GroupReceipt, RolloutLease
from tests.sim.test_resume import replace_checkpoint, trained, troubled, uneven
from tests.support.lives import Lives, holds
from tests.support.runs import run_config
from tests.support.scripted.workloads import ScriptedWorkloads, scripted_workloads

ages = st.builds(
    run_config,
    steps=st.integers(3, 8),
    batch_groups=st.integers(1, 4),
    max_age=st.sampled_from([0.5, 1, 2, 3]),
    staleness=st.sampled_from(["wait", "drop", "partial", "loose"]),
    publish=st.sampled_from(["inflight", "drain"]),
    slots=st.none() | st.integers(2, 6),
    max_dropped=st.just(1.0),
    checkpoint=st.builds(
        CheckpointConfig, every=st.integers(1, 3), compact_events=st.sampled_from([0, 25]), durability=st.just("groups")
    ),
    filter=st.builds(FilterConfig, ceiling=st.sampled_from([0, 1, None])),
)


@given(cfg=ages, deaths=st.lists(st.integers(1, 60), min_size=1, max_size=4), stop_s=st.floats(0.1, 9.0))
@settings(max_examples=100, derandomize=True)
def test_what_is_restored_is_never_too_old_and_trained_once(cfg: RunConfig, deaths: list[int], stop_s: float) -> None:
    """Laws 1, 2 and 3 with age allowed: a restored group is as old as it is, and the others do not wait for it."""
    rewards = cycle([troubled, alternating])  # what one life filters, the next one trains

    def build() -> ScriptedWorkloads:
        return scripted_workloads(ScriptedPrompts(9, epochs=30), duration_s=uneven, rewards=next(rewards))

    with TemporaryDirectory() as folder:
        lives = Lives(cfg=cfg, build=build, folder=Path(folder))
        run_virtual(lambda: lives.live(stop_after_s=stop_s))
        for more in deaths:
            run_virtual(lambda more=more: lives.live(holds(len(lives.events) + more)))
        result = run_virtual(lives.live)
    assert result is not None
    assert result.accounts.balanced
    assert result.accounts.open == 0
    if not cfg.checkpoint.compact_events:
        flat = list(chain.from_iterable(trained(lives.events)))
        assert len(flat) == len(set(flat))
        prompts = [event.prompt.position for event in lives.events if isinstance(event, Admitted)]
        assert prompts == sorted(prompts)
        assert_made_by_weights_that_exist(lives.events)
    if cfg.staleness != "loose":
        assert max(record.metrics["age/max"] for record in result.metrics) <= math.ceil(cfg.max_age)
    note_event(f"restored: {bool(groups_of(lives))}")


def assert_made_by_weights_that_exist(events: Sequence[LedgerEvent]) -> None:
    """A resume goes back to a version; what later ones made in the life before it is gone."""
    receipts, version = dict[LeaseId, GroupReceipt](), 0
    for event in events:
        if isinstance(event, Graded):
            receipts[event.lease_id] = event.receipt
        elif isinstance(event, Resumed):
            version = event.version
        elif isinstance(event, Restored):
            assert newest(receipts[event.lease_id]) <= version


def newest(receipt: GroupReceipt) -> int:
    return max(segment.version for sample in receipt.samples for segment in sample.segments)


def groups_of(lives: Lives) -> list[int]:
    return [int(one.lease_id[1:]) for one in lives.events if isinstance(one, Restored)]


KEPT = run_config(
    steps=4,
    batch_groups=3,
    max_age=1,
    checkpoint=CheckpointConfig(every=0, durability="groups"),
)


def stopped(tmp_path: Path) -> Lives:
    """Stop a run in order in the middle of a step, while groups for the next one are finished."""
    lives = Lives(cfg=KEPT, build=lambda: scripted_workloads(40, duration_s=uneven), folder=tmp_path)
    assert run_virtual(lambda: lives.live(stop_after_s=2.3)) is None
    assert lives.spooled
    return lives


def test_a_run_that_is_stopped_keeps_what_was_finished_and_generates_none_of_it_again(tmp_path: Path) -> None:
    """Issue C: finished, untrained groups are restored from the payload spool, to the token."""
    lives = stopped(tmp_path)
    finished = [lease.lease_id for lease in rebuild(lives.events).in_state(State.GRADED)]
    assert finished
    played: list[LeaseId] = []

    def build_again() -> ScriptedWorkloads:
        def note_it(lease: RolloutLease) -> float:
            played.append(lease.lease_id)
            return uneven(lease)

        return scripted_workloads(40, duration_s=note_it)

    lives.build = build_again
    result = run_virtual(lives.live)
    assert result is not None
    assert [f"L{number}" for number in groups_of(lives)] == finished
    assert not {*played} & {*finished}
    assert sorted(chain.from_iterable(trained(lives.events))) == list(range(12))


@pytest.mark.parametrize("damage", ["flipped", "cut", "missing", "unreadable"])
def test_what_the_spool_has_lost_is_generated_again_and_named(tmp_path: Path, damage: str) -> None:
    """A power failure may take a payload with it: the group is readmitted, told by its number."""
    lives = stopped(tmp_path)
    file, *others = lives.spooled
    whole = file.read_bytes()
    match damage:
        case "flipped":
            file.write_bytes(whole[:9] + bytes([whole[9] ^ 1]) + whole[10:])
        case "cut":
            file.write_bytes(whole[:-1])
        case "missing":
            file.unlink()
        case _:
            file.unlink()
            file.mkdir()
    result = run_virtual(lives.live)
    assert result is not None
    lost = LeaseId(file.name.partition(".")[0])
    assert [f"L{number}.0" for number in groups_of(lives)] == [other.name for other in others]
    assert any(isinstance(event, Readmitted) and event.lease_id == lost for event in lives.events)
    log = (lives._run_dir / "log.jsonl").read_text() if lives._run_dir else ""
    assert f'"lease_id":"{lost}"' in log.replace(" ", "")
    assert "group.not_restored" in log
    assert sorted(chain.from_iterable(trained(lives.events))) == list(range(12))


def test_a_resume_that_wants_no_groups_generates_them_and_removes_the_spool(tmp_path: Path) -> None:
    """`checkpoint` may be changed at a resume."""
    lives = stopped(tmp_path)
    lives.cfg = replace_checkpoint(KEPT, CheckpointConfig(every=0))
    result = run_virtual(lives.live)
    assert result is not None
    assert groups_of(lives) == []
    assert lives._run_dir is not None
    assert not (lives._run_dir / "spool").exists()


LONGER = msgspec.structs.replace(KEPT, steps=8, checkpoint=CheckpointConfig(every=2, durability="groups"))


def test_samples_of_weights_that_are_gone_are_not_restored(tmp_path: Path) -> None:
    """Killed, the run goes back to a checkpoint; the steps behind it, and what their weights made, are no more."""
    lives = Lives(cfg=LONGER, build=lambda: scripted_workloads(40, duration_s=uneven), folder=tmp_path)

    def fatal(events: Sequence[LedgerEvent]) -> bool:
        return isinstance(events[-1], Graded) and newest(events[-1].receipt) == 3

    run_virtual(lambda: lives.live(fatal))
    graded = [event for event in lives.events if isinstance(event, Graded)]
    newer = {event.lease_id for event in graded if newest(event.receipt) > 2}
    assert newer
    result = run_virtual(lives.live)
    assert result is not None
    assert not newer & {event.lease_id for event in lives.events if isinstance(event, Restored)}


def test_a_group_that_could_not_be_trained_in_time_is_generated_anew(tmp_path: Path) -> None:
    """Law 3: admitted in the place of one that was filtered, and that one is trained after all: it is one too many."""

    def equal(request: GradeRequest) -> list[Grade | GradeFault]:
        return [Grade(reward=1.0)] * len(request.samples) if request.prompt.position == 10 else alternating(request)

    rewards = iter([equal, alternating])
    lives = Lives(
        cfg=LONGER,
        build=lambda: scripted_workloads(40, duration_s=lambda _: 0.2, rewards=next(rewards)),
        folder=tmp_path,
    )

    def fatal(events: Sequence[LedgerEvent]) -> bool:
        kinds = [type(event) for event in events]
        return Checkpointed in kinds and kinds.count(Claimed) == 3

    run_virtual(lambda: lives.live(fatal))
    assert newest(rebuild(lives.events)[LeaseId("L12")].finished_receipt) == 2
    result = run_virtual(lives.live)
    assert result is not None
    assert max(record.metrics["age/max"] for record in result.metrics) == 1
    assert 12 not in groups_of(lives)
