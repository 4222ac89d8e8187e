"""Shards: what they take, what is written and read of them, and what becomes of a pass that is cut off."""

from pathlib import Path

import pytest

from backends.trainers.torch import checkpoint
from backends.trainers.torch.ranks import Ranks
from benchmarks.bench_sharding import LAYERS, measure
from tests.support.ranked import Trained, go_on, make_learner, open_ranks, train
from tests.support.sharding import BEFORE, WHOLE, Lived, live

pytestmark = pytest.mark.timeout(400)  # processes of their own that load torch


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def lives(folder: Path) -> list[Lived]:
    one = make_learner(WHOLE, Ranks(0.0))
    go_on(one, BEFORE)
    (folder / "one").mkdir()
    checkpoint.write(checkpoint.state_of(one), folder / "one")
    with open_ranks() as on_all:
        return on_all(live, folder)


@pytest.fixture(scope="module")
def alone() -> Trained:
    return train(WHOLE, steps=BEFORE + 1)


def test_shards_go_on_from_their_checkpoint_as_if_nothing_had_been(lives: list[Lived]) -> None:
    """Law 7: to the last bit."""
    for lived in lives:
        assert lived.resumed == lived.went_on
    assert lives[0].went_on.values
    assert lives[0].went_on.metrics == lives[1].went_on.metrics


@pytest.mark.parametrize("who", ["copied", "from_one"])
def test_a_checkpoint_does_not_know_how_many_ranks_wrote_it(who: str, lives: list[Lived], alone: Trained) -> None:
    """Sharded to replicated, and one process to sharded."""
    _third_step(getattr(lives[0], who), alone)


def test_one_process_goes_on_from_shards(lives: list[Lived], folder: Path, alone: Trained) -> None:
    assert lives
    one = make_learner(WHOLE, Ranks(0.0))
    checkpoint.load(one, folder / "shards")
    _third_step(go_on(one, 1), alone)


def test_a_pass_that_was_cut_off_changes_nothing(lives: list[Lived], alone: Trained) -> None:
    """Whoever was waited for in a layer is told of as lost; all that is held goes on in the next meeting."""
    assert [lived.cut for lived in lives] == ["PeersLost", "PortFailed"]
    assert lives[0].met_again.values == pytest.approx(alone.values, abs=1e-5)
    assert [one["loss"] for one in lives[1].met_again.metrics] == pytest.approx(
        [one["loss"] for one in alone.metrics[1:]], abs=1e-5
    )


@pytest.mark.slow
def test_a_rank_holds_its_part_and_gathers_no_more_than_it_must() -> None:
    """Issue F: peak memory is bounded, counted in bytes of tensors; sizes that do not divide are padded."""
    found = measure(64)
    whole, ranks = found["no_shard"][0], found["full_shard"]
    layer = whole.parameters / LAYERS
    assert whole.held == pytest.approx(4 * whole.parameters, rel=0.01)
    for peaks in ranks:
        assert peaks.held == pytest.approx(whole.held / 2, rel=0.02)
        assert peaks.step < peaks.held + 7 * layer
    first, other = ranks
    assert other.publish < other.held + 3.5 * layer, "the probe takes layers, the weights one tensor at a time"
    assert other.snapshot < other.held + 4 * other.largest, "three of a tensor, and what is left of the one before"
    assert first.publish < first.held + first.parameters + 3 * first.largest
    assert first.snapshot < first.held + 3 * first.parameters + 3 * first.largest


def _third_step(found: Trained, alone: Trained) -> None:
    assert found.metrics[0]["loss"] == pytest.approx(alone.metrics[BEFORE]["loss"], abs=1e-5)
    assert found.metrics[0]["value/loss"] == pytest.approx(alone.metrics[BEFORE]["value/loss"], abs=1e-5)
    assert found.values == pytest.approx(alone.values, abs=1e-5)
