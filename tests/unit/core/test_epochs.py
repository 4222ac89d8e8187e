"""The gate between epochs."""

from conductor.core.epochs import EpochGate


def test_the_next_epoch_waits_for_the_last_batch_of_this_one() -> None:
    """I56: no batch mixes two epochs unless the job says so."""
    gate = EpochGate(remainder="train")
    assert gate.offer(0)
    assert not gate.offer(1)
    assert gate.ended
    gate.close(progress=1)
    assert gate.offer(1)
    assert not gate.ended


def test_carrying_over_knows_no_boundary() -> None:
    """remainder = "carry": groups of the next epoch fill the batch."""
    gate = EpochGate(remainder="carry")
    assert gate.offer(0)
    assert gate.offer(1)
    gate.exhaust()
    assert gate.ended


def test_an_epoch_that_trains_nothing_is_told() -> None:
    """I14: everything is dropped, the next epoch is the same, and the run never ends."""
    gate = EpochGate(remainder="drop")
    gate.offer(0)
    assert gate.close(progress=3)
    gate.offer(1)
    assert not gate.close(progress=3)
    gate.offer(2)
    gate.exhaust()
    assert gate.close(progress=3)
