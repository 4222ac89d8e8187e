"""The master of a role: a user's object beside the controller, which knows the role and may decide what it needs.

It is told of its workers' coming and going, and asked about each incident before the default policy is. It decides
within the role's budgets: where these are spent, or what was trained is gone, nobody is asked. A master that raises,
hangs, or says what cannot be done is told of in the log, and the default policy decides.
"""

from functools import partial
from typing import Any

from structlog.typing import FilteringBoundLogger

from conductor.core.failover import Decision, Raise, Resize, Restart, Situation
from conductor.fleet.users import ask
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
    """Calls the master of one role.

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
        self._told: set[str] = set()

    async def came(self, worker: WorkerId) -> None:
        """Tell that a worker is there."""
        await self._call("came", worker)

    async def went(self, worker: WorkerId, why: str) -> None:
        """Tell that a worker is not there any more."""
        await self._call("went", worker, why)

    async def claim(self, situation: Situation, *, may_shrink: bool) -> Decision | None:
        """Return what it decides; None: nothing that can be done.

        Args:
            situation: What is decided about.
            may_shrink: Whether the role can go on without those that are lost.
        """
        decision = await self._call("claim", situation)
        if decision is not None and (why := _impossible(decision, situation, may_shrink=may_shrink)):
            self._tell("claim", why)
            return None
        return decision

    async def _call(self, point: str, *facts: Any) -> Any:
        if (method := getattr(self._user, point, None)) is None:
            return None
        said = await ask(partial(method, *facts), within_s=self._patience_s)
        if said.failed is not None:
            self._tell(point, said.failed)
        return said.value

    def _tell(self, point: str, why: str) -> None:
        """Tell of what it does wrong, once for each way."""
        if f"{point} {why}" not in self._told:
            self._told.add(f"{point} {why}")
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
