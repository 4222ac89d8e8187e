"""What two ranks do with their shards in tests, from their first meeting on; run in a process for each."""

from pathlib import Path
from typing import Any, NamedTuple

from backends.trainers.torch import checkpoint
from backends.trainers.torch.options import CriticConfig
from backends.trainers.torch.ranks import Ranks
from protocols.errors import PeersLost, PortFailed
from tests.support.ranked import Trained, go_on, make_learner, meet, step

WHOLE: dict[str, Any] = {"algorithm": "ppo", "critic": CriticConfig(lr=1e-2), "micro_batch_tokens": 1}
PARTS = {**WHOLE, "sharding": "full_shard"}
BEFORE = 2
"""Steps before a checkpoint."""


class Lived(NamedTuple):
    """What one rank saw.

    Attributes:
        went_on: The step after a checkpoint of shards, by those who wrote it.
        resumed: The same step, by who loaded it as shards.
        copied: The same step, by who loaded it whole, on each rank.
        from_one: The same step, by shards of a checkpoint of one process.
        cut: How the call ended in which rank 1 was cut off between two passes.
        met_again: Two steps after that, in another meeting.
    """

    went_on: Trained
    resumed: Trained
    copied: Trained
    from_one: Trained
    cut: str
    met_again: Trained


def live(ranks: Ranks, rank: int, address: str, folder: Path) -> Lived:
    """Save and load shards, then lose one another in the middle of a pass and meet again.

    Args:
        ranks: This process's place among them, before any meeting.
        rank: This one's.
        address: Where to meet.
        folder: ``one`` in it is a checkpoint of one process, after ``BEFORE`` steps; ``shards`` will be.
    """
    cut = _Cut()
    writer, resumed, from_one = (make_learner(PARTS, ranks) for _ in range(3))
    copied, loser = make_learner(WHOLE, ranks), make_learner(PARTS, ranks, interrupt=cut)
    meet([writer, resumed, from_one, copied, loser], rank, address)
    go_on(writer, BEFORE)
    state = checkpoint.copy_of(writer)
    if rank == 0:
        (folder / "shards").mkdir()
        checkpoint.write(state, folder / "shards")
    went_on = go_on(writer, 1)  # and with it rank 1 knows that the file is there
    for learner, name in ((resumed, "shards"), (copied, "shards"), (from_one, "one")):
        checkpoint.load(learner, folder / name)
    after = {
        name: go_on(learner, 1) for name, learner in (("resumed", resumed), ("copied", copied), ("from_one", from_one))
    }
    step(loser)
    cut.in_passes = 3 if rank == 1 else None
    try:
        step(loser)
        ended = "trained"
    except (PeersLost, PortFailed) as exc:
        ended = type(exc).__name__
        ranks.leave()
    cut.in_passes = None
    meet([loser], rank, address, generation=2)
    return Lived(went_on=went_on, cut=ended, met_again=go_on(loser, 2), **after)


class _Cut:
    """Ends a step before one of its passes."""

    def __init__(self) -> None:
        self.in_passes: int | None = None

    def __call__(self) -> None:
        if self.in_passes is None:
            return
        self.in_passes -= 1
        if self.in_passes < 0:
            raise PortFailed("the caller of this job is gone")
