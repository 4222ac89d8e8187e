"""What the tasks that look after a fleet know of the run, and where they write down what they did."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from structlog.typing import FilteringBoundLogger

from protocols.ledger import Incident, Scaled
from protocols.messages import WeightVersion

_TOLD = ("role", "workers", "cause", "level", "attempts", "verdict", "version", "seconds")


@dataclass(frozen=True, kw_only=True)
class Journal:
    """The run, as seen by those who look after its fleet.

    Attributes:
        trained: The trainer's version.
        record: Writes an incident down.
        log: The run's.
    """

    trained: Callable[[], WeightVersion]
    record: Callable[[Incident | Scaled], Awaitable[None]]
    log: FilteringBoundLogger

    async def close(self, incident: Incident) -> None:
        """Tell of a failover that has ended."""
        self.log.warning("failover.ended", **{name: getattr(incident, name) for name in _TOLD})
        await self.record(incident)
