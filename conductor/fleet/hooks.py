"""What a user's code is told of worker groups, and the one rule for when it fails.

A hook that raises, hangs or cancels itself is told of once, in the log. It never skips a release, keeps nobody waiting
for longer than its patience once it can be cancelled, and never changes what becomes of the run.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any

from structlog.typing import FilteringBoundLogger

from conductor.fleet.group import WorkerGroup
from conductor.fleet.users import ask
from protocols.aio import bounded_shield
from protocols.fleet import Vertex
from protocols.incidents import Incident

POINTS = ("launching", "launched", "started", "failed_over", "stopping", "stopped")
"""Methods that a hook may have, all of them coroutines; in the order of a run.

``launching(role, workers)``: Workers of a role are about to be launched, where their vertices say.
``launched(role, workers)``: They all run, and nobody has called them yet. There is no group before it is active: what
    is not ready cannot be called too early.
``started(group)``: The group is active: its nodes are checked, and its ranks have met. Now it can be called.
``failed_over(incident)``: A failover ended.
``stopping(role, workers)``: They are about to be ended, whatever for; they need not be there any more. They are the
    workers of then, where they are by then: some may have moved, joined or left since the launch.
``stopped(role, workers)``: They are ended, and what they held is given back next. It follows every ``launching``.
"""

Workers = Callable[[], tuple[Vertex, ...]]
"""Tells where the workers of a role are by now."""

_MARGIN_S = 1.0


class Hooks:
    """Tells every hook of each point, one after the other.

    Args:
        hooks: Objects with some of ``POINTS`` as methods.
        patience_s: How long one may take at one point, in seconds.
        log: Is told of those that fail.
    """

    def __init__(self, hooks: Sequence[object], *, patience_s: float, log: FilteringBoundLogger) -> None:
        self._hooks = tuple(hooks)
        self._patience_s = patience_s
        self._log = log
        self._told: set[tuple[int, str]] = set()

    def around(self, role: str, workers: Workers) -> AbstractAsyncContextManager[None]:
        """Tell before workers are launched in the block, and after they are ended."""
        return self._around("launching", "stopped", role, workers)

    def within(self, role: str, workers: Workers) -> AbstractAsyncContextManager[None]:
        """Tell that workers were launched, and before they are ended, which they are after the block."""
        return self._around("launched", "stopping", role, workers)

    @asynccontextmanager
    async def _around(self, first: str, last: str, role: str, workers: Workers) -> AsyncGenerator[None]:
        try:
            await self.tell(first, role, workers())
            yield
        finally:
            # later than the patience of the last one, or the shield would cut it and nobody would be told
            with bounded_shield(self._patience_s * len(self._hooks) + _MARGIN_S):
                await self.tell(last, role, workers())  # noqa: ASYNC102 - the shield has a deadline

    async def started(self, group: WorkerGroup) -> None:
        """Tell that a group is active."""
        await self.tell("started", group)

    async def failed_over(self, incident: Incident) -> None:
        """Tell that a failover has ended."""
        await self.tell("failed_over", incident)

    async def tell(self, point: str, *facts: Any) -> None:
        """Call a point of every hook that has it."""
        for number, hook in enumerate(self._hooks):
            if (method := getattr(hook, point, None)) is None:
                continue
            said = await ask(partial(method, *facts), within_s=self._patience_s)
            if said.failed is not None and (number, point) not in self._told:
                self._told.add((number, point))
                self._log.error("hook.failed", hook=type(hook).__name__, point=point, why=said.failed)
