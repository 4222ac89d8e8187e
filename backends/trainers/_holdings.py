"""What several ranks hold of what they train: each all of it, or each a part."""

from collections.abc import Collection, Mapping
from typing import Protocol

from protocols.errors import ConductorError, StateLost, Transient, WorkerLost
from protocols.messages import WorkerId
from protocols.training import Standing


class Holdings(Protocol):
    """What follows from it.

    Attributes:
        parts: Whether what one rank stages or saves takes all of them.
    """

    parts: bool

    def source(self, standings: Mapping[WorkerId, Standing], new: Collection[WorkerId]) -> WorkerId:
        """Return whose state the ranks go on from.

        Args:
            standings: Of all ranks, in their order.
            new: Those that hold nothing that was trained.

        Raises:
            StateLost: That state is gone.
        """
        ...

    def failure(self, name: WorkerId, loss: WorkerLost) -> ConductorError:
        """Return what is to be told of the loss of one rank."""
        ...


class Copies:
    """Whoever is left has all: a lost rank copies it."""

    parts = False

    def source(self, standings: Mapping[WorkerId, Standing], new: Collection[WorkerId]) -> WorkerId:
        """Return the one that has come farthest, the first of several."""
        old = [name for name, one in standings.items() if name not in new and one.whole]
        if not old:
            raise StateLost(workers=tuple(standings), cause="none that is left has a whole version")
        return max(old, key=lambda name: standings[name].version)

    def failure(self, name: WorkerId, loss: WorkerLost) -> ConductorError:
        """Nobody is told ``WorkerLost``, which would mean that the trainer is gone."""
        return Transient(f"the rank {name} is lost: {loss.cause}")


class Parts:
    """All are needed: what a lost rank held, nobody has."""

    parts = True

    def source(self, standings: Mapping[WorkerId, Standing], new: Collection[WorkerId]) -> WorkerId:
        """Return the first: each goes on from its own."""
        if new:
            raise StateLost(workers=tuple(sorted(new)), cause="each had a part of it, which nobody else has")
        halfway = [name for name, one in standings.items() if not one.whole]
        if halfway or len({one.version for one in standings.values()}) > 1:
            reached = ", ".join(f"{name} v{one.version}" for name, one in standings.items())
            cause = f"their parts are of different versions ({reached}; half-way: {', '.join(halfway) or 'none'})"
            raise StateLost(workers=tuple(standings), cause=cause)
        return next(iter(standings))

    def failure(self, name: WorkerId, loss: WorkerLost) -> ConductorError:
        """The trainer's state is gone."""
        return StateLost(workers=(name,), cause=f"it had a part of it, and is lost: {loss.cause}")


_: tuple[type[Holdings], ...] = (Copies, Parts)


def holdings_of(standings: Mapping[WorkerId, Standing]) -> Holdings:
    """Return what ranks that say so hold."""
    return Parts() if any(one.part for one in standings.values()) else Copies()

