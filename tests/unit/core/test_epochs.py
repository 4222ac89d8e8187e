"""The gate between epochs."""

from conductor.core.epochs import EpochGate
from conductor.core.tally import Tally


def test_the_next_epoch_waits_for_the_last_batch_of_this_one() -> None:
    """I56: no batch mixes two epochs unless the job says so."""
    gate, tally = EpochGate(remainder="train"), Tally()
    assert gate.offer(0, tally)
    tally.epoch = 0
    assert not gate.offer(1, tally)
    assert gate.ended
    gate.close(tally)
    tally.close_epoch()
    assert gate.offer(1, tally)
    assert not gate.ended


def test_carrying_over_knows_no_boundary() -> None:
    """remainder = "carry": groups of the next epoch fill the batch."""
    gate = EpochGate(remainder="carry")
    assert gate.offer(0, Tally())
    assert gate.offer(1, Tally(epoch=0))
    gate.exhaust()
    assert gate.ended


def test_an_epoch_that_trains_nothing_is_told() -> None:
    """I14: everything is dropped, the next epoch is the same, and the run never ends."""
    gate, tally = EpochGate(remainder="drop"), Tally(epoch=0)
    tally.claim(2)
    assert gate.close(tally)
    tally.close_epoch()
    tally.epoch = 1
    assert not gate.close(tally)
    tally.close_epoch()
    gate.exhaust()
    assert gate.close(tally)
