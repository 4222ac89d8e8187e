"""Code of your own beside the fleet: a hook that announces what happens, and a master that goes on with fewer engines.

See "Code of your own" in docs/fleet.md. Neither can break a run: what fails here is told of in the log.
"""

from pathlib import Path

from conductor.core.failover import Resize, Situation
from conductor.fleet.group import WorkerGroup
from protocols.incidents import Incident
from protocols.messages import WorkerId


class Announce:
    """Appends a line to a file for each group that is active, and for each incident."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    async def started(self, group: WorkerGroup) -> None:
        """A group can be called now."""
        self._write(f"{', '.join(group.members)} started")

    async def failed_over(self, incident: Incident) -> None:
        """Workers were lost, and this is what came of it."""
        self._write(f"{', '.join(incident.workers)}: {incident.verdict} after {incident.seconds:.0f} s")

    def _write(self, line: str) -> None:
        with self._path.open("a") as file:
            print(line, file=file)


class Frugal:
    """Lets engines go that are lost, as long as enough are left; what it declines, the default policy decides."""

    def __init__(self, enough: int) -> None:
        self._enough = enough
        self.there: set[WorkerId] = set()

    async def came(self, worker: WorkerId) -> None:
        """An engine is there."""
        self.there.add(worker)

    async def went(self, worker: WorkerId, why: str) -> None:
        """One is not, and why."""
        del why
        self.there.discard(worker)

    async def claim(self, situation: Situation) -> Resize | None:
        """Decide what to do about engines that are lost."""
        return Resize() if len(self.there) >= self._enough and situation.left else None
