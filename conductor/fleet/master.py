"""The master of a role: a user's object beside the controller, which knows the role and may decide what it needs.

It is told of its workers' coming and going, and asked about each incident before the default policy is. It decides
within the role's budgets: where these are spent, or what was trained is gone, nobody is asked. A master that raises,
hangs, or says what cannot be done is told of in the log, and the default policy decides.

Nobody waits for a master that is told; a claim waits for what was told before it. A method that took too long is not
called again, so that a master which hangs holds up one failover, and not each.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
from structlog.typing import FilteringBoundLogger

from conductor.core.failover import Decision, Raise, Resize, Restart, Situation
from conductor.fleet.users import ask
from protocols.aio import Doorbell
from protocols.errors import ConductorError
from protocols.messages import WorkerId
from protocols.pauses import LONGEST_S

POINTS = ("came", "went", "claim")
"""Methods that a master may have, all of them coroutines.

``came(worker)``: A worker of the role is there: at the start, again, or as one more.
``went(worker, why)``: One is not there any more: it is lost, or was ended for good.
``claim(situation)``: What to do about the workers that are lost (``conductor.core.failover.Situation``): ``Restart``,
    ``Resize``, ``Raise``, or None, and the default policy decides.
"""


class Master:
    """Calls the master of one role, one call after the other while ``run`` runs.

    Args:
        role: Its name.
        user: The user's object; None: the role has none.
        patience_s: How long a call may take, in seconds.
        log: Is told where it fails.
    """

    def __init__(self, role: str, user: object | None, *, patience_s: float, log: FilteringBoundLogger) -> None:
        self._role = role
        self._user = user
        self._patience_s = patience_s
        self._log = log
        self._failed: set[str] = set()
        self._hung: set[str] = set()
        self._untold: deque[tuple[str, tuple[Any, ...]]] = deque()
        self._changed = Doorbell()

    def came(self, worker: WorkerId) -> None:
        """Have it told that a worker is there."""
        self._untold.append(("came", (worker,)))
        self._changed.ring()

    def went(self, worker: WorkerId, why: str) -> None:
        """Have it told that a worker is not there any more."""
        self._untold.append(("went", (worker, why)))
        self._changed.ring()

    async def run(self) -> None:
        """Tell it, in order, until cancelled."""
        while True:
            while self._untold:
                point, facts = self._untold[0]
                await self._call(point, *facts)
                self._untold.popleft()
                self._changed.ring()
            await self._changed.wait()

    async def claim(self, situation: Situation, *, may_shrink: bool) -> Decision | None:
        """Return what it decides, once it was told all; None: nothing that can be done.

        Telling it may take as long as a call, and is not waited for any longer.

        Args:
            situation: What is decided about.
            may_shrink: Whether the role can go on without those that are lost.
        """
        if self._method("claim") is None:
            return None
        with anyio.move_on_after(self._patience_s):
            while self._untold:
                await self._changed.wait()
        decision = await self._call("claim", situation)
        if decision is not None and (why := _impossible(decision, situation, may_shrink=may_shrink)):
            self._tell("claim", why)
            return None
        return decision

    async def _call(self, point: str, *facts: Any) -> Any:
        if (method := self._method(point)) is None:
            return None
        said = await ask(partial(method, *facts), within_s=self._patience_s)
        if said.cut:
            self._hung.add(point)
            self._tell(point, f"{said.failed}; it is not called any more")
        elif said.failed is not None:
            self._tell(point, said.failed)
        return said.value

    def _method(self, point: str) -> Callable[..., Awaitable[Any]] | None:
        """Return what is called at a point; None: nothing, or it has hung before."""
        return None if point in self._hung else getattr(self._user, point, None)

    def _tell(self, point: str, why: str) -> None:
        """Tell of what it does wrong, once for each point, and again where that is called no more."""
        if point not in self._failed or point in self._hung:
            self._failed.add(point)
            self._log.error("master.failed", role=self._role, point=point, why=why)


def _impossible(decision: object, situation: Situation, *, may_shrink: bool) -> str | None:
    """Say why something is no decision that can be carried out."""
    match decision:
        case Restart(after_s=after_s) if not 0.0 <= after_s <= LONGEST_S:
            return f"a pause of {after_s:g} s is none from 0 to {LONGEST_S:g}"
        case Restart(role=True) if situation.holds_state:
            return "to launch all of it anew would lose what was trained"
        case Resize() if not may_shrink:
            return "the role cannot go on with fewer"
        case Raise(error=error) if not isinstance(error, ConductorError):  # pyright: ignore[reportUnnecessaryIsInstance]
            return f"{type(error).__name__} is no ConductorError"
        case Restart() | Resize() | Raise():
            return None
        case _:
            return f"{type(decision).__name__} is no decision: Restart, Resize, Raise, or None"
