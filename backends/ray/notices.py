"""Notice that nodes are about to be taken away, as whoever takes them tells Ray, and Ray tells nobody."""

import anyio
import structlog

from backends.ray.calls import asked
from backends.ray.nodes import draining
from protocols.errors import ConductorError

log = structlog.get_logger(__name__)

_LOOK_S = 1.0


class Notices:
    """Asks again and again; ``run`` must be a task.

    Attributes:
        nodes: Ray's ids of the nodes that are being drained.
    """

    def __init__(self) -> None:
        self.nodes: frozenset[str] = frozenset()

    async def run(self) -> None:
        """Ask until cancelled. A question that fails is no news: what is gone is told to those who call it."""
        while True:
            try:
                nodes = await asked(draining)
            except ConductorError as exc:
                log.warning("nodes.not_asked", error=str(exc))
            else:
                if new := nodes - self.nodes:
                    log.warning("nodes.draining", nodes=sorted(new))
                self.nodes = nodes
            await anyio.sleep(_LOOK_S)
