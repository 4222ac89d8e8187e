"""What a pool knows of one engine."""

from dataclasses import dataclass, field

import anyio

from protocols.aio import Doorbell
from protocols.errors import ConductorError, DeadlineExceeded, Transient, WorkerLost
from protocols.inference import EnginePort
from protocols.messages import WeightVersion, WorkerId


@dataclass(eq=False)
class Member:
    """One engine.

    Attributes:
        confirmed: The version that it said it serves when it loaded weights last; None: it is stale.
        lost: Whether it did not answer the last time.
        halted: Whether it may stand still since nobody confirmed that it goes on.
        samples: Of the requests that it works on.
        calls: Of ``generate`` that are inside.
        failure: What its last renewal failed with; None: it did not.
        failures: Renewals that failed in a row.
        tried: The version that the last renewal was to bring.
        renewal: The one that goes on; None: none does.
        leaving: Whether it gets no more requests, since it is to be ended.
        keeping: Around its keeper; None: it has none yet.
        called: Rings when it is stale, or other weights are wanted.
    """

    name: WorkerId
    engine: EnginePort
    confirmed: WeightVersion | None = None
    lost: bool = False
    halted: bool = False
    samples: int = 0
    calls: dict[anyio.CancelScope, None] = field(default_factory=dict)
    failure: ConductorError | None = None
    failures: int = 0
    tried: WeightVersion | None = None
    renewal: anyio.CancelScope | None = None
    leaving: bool = False
    keeping: anyio.CancelScope | None = None
    called: Doorbell = field(default_factory=Doorbell)
    _quieter: Doorbell = field(default_factory=Doorbell)

    def lose(self) -> None:
        """Take note that it is gone, and what it ran with it; to find that once more is no news to its keeper."""
        if not self.lost:
            self.lost = True
            self.stale()

    def stale(self) -> None:
        """Take note that nobody knows what it serves."""
        self.confirmed = None
        self.called.ring()

    def left(self, samples: int) -> None:
        """Take note that a request is over."""
        self.samples -= samples
        self._quieter.ring()

    async def quiet(self) -> None:
        """Wait until it works on nothing."""
        while self.samples:
            await self._quieter.wait()

    def cut(self) -> None:
        """Let go of all that it works on: whoever asked tries elsewhere."""
        for call in tuple(self.calls):
            call.cancel()

    def renewed(self, version: WeightVersion) -> None:
        """Take note that it serves ``version``."""
        self.confirmed = self.tried = version
        self.failure, self.failures = None, 0

    def failed(self, version: WeightVersion, failure: ConductorError) -> None:
        """Take note that it does not serve ``version``.

        What it worked on is cut where it was silent for as long as it may be, or failed before. After one failure that
        came at once it goes on when the next renewal succeeds.
        """
        self.tried, self.failure = version, failure
        self.failures += 1
        if isinstance(failure, WorkerLost):
            self.lose()
        if self.failures > 1 or isinstance(failure, DeadlineExceeded):
            self.cut()

    def refuses(self, version: WeightVersion) -> bool:
        """Return whether trying again would not let it serve ``version``."""
        return self.tried == version and self.failure is not None and not isinstance(self.failure, Transient)

    def standing(self) -> str:
        """Say what is wrong with it."""
        if self.failure is None:
            return f"{self.name}: {self.samples} samples run on it"
        times = "once" if self.failures == 1 else f"{self.failures} times"
        return f"{self.name}: failed {times}, the last time: {self.failure}"
