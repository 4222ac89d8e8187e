"""What the tasks that look after a fleet know of the run, and where they write down what they did."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from structlog.typing import FilteringBoundLogger

from protocols.incidents import Incident, Scaled
from protocols.messages import WeightVersion

_TOLD = ("role", "workers", "cause", "level", "attempts", "verdict", "version", "seconds")


@dataclass(frozen=True, kw_only=True)
class Journal:
    """The run, as seen by those who look after its fleet.

    Attributes:
        trained: The trainer's version.
        record: Writes an incident down.
        log: The run's.
        save: Has a checkpoint written after the current step.
        told: Is told of it as well.
    """

    trained: Callable[[], WeightVersion]
    record: Callable[[Incident | Scaled], Awaitable[None]]
    log: FilteringBoundLogger
    save: Callable[[], None] = lambda: None
    told: Callable[[Incident], Awaitable[None]] | None = None

    async def close(self, incident: Incident) -> None:
        """Tell of a failover that has ended."""
        self.log.warning("failover.ended", **{name: getattr(incident, name) for name in _TOLD})
        await self.record(incident)
        if self.told is not None:
            await self.told(incident)
