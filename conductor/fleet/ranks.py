"""Ranks that are one trainer together: their nodes are checked, then they meet."""

from collections.abc import Callable, Mapping
from typing import Protocol

from conductor.config import CheckConfig
from conductor.fleet.budget import Budget
from conductor.fleet.checking import NodeCheck
from conductor.fleet.failover import Failover
from conductor.fleet.group import WorkerGroup
from conductor.fleet.journal import Journal
from conductor.fleet.moving import Fleet, Mover
from conductor.fleet.soundness import Soundness
from protocols.adapters import load_object
from protocols.messages import WorkerId
from protocols.training import RankPort, TrainerPort

_RANKS = "backends.trainers.data_parallel:DataParallel"
_LOOPBACK = "127.0.0.1"


class Ranks(TrainerPort, Protocol):
    """What a fleet does with the trainer that its ranks are; see ``backends.trainers.data_parallel``."""

    async def meet(self) -> None:
        """Have all ranks stand together."""
        ...

    def replaced(self, worker: WorkerId) -> None:
        """Take note that one is another process now."""
        ...


async def open_ranks(
    failover: Failover,
    group: WorkerGroup,
    clients: Mapping[WorkerId, RankPort],
    *,
    check: CheckConfig | None,
    recheck_s: float,
    fleet: Fleet,
    mover: Mover,
    budget: Budget,
    journal: Journal,
) -> TrainerPort:
    """Return one trainer of ranks that were launched, and let it know what becomes of them.

    Args:
        failover: Of the ranks.
        group: They.
        clients: Call them, rank 0 first.
        check: How their nodes are checked; None: they are not.
        recheck_s: How long that may take when some have moved, in seconds.
        fleet: Where everybody is.
        mover: Finds other places for those on nodes that do not pass.
        budget: What is left of the time of the start.
        journal: Is told of nodes that do not pass.

    Raises:
        Infeasible: There are not enough nodes that pass the check.
        ConductorError: They do not meet.
    """
    role = failover.role.name

    def host() -> str:
        return _LOOPBACK if len({vertex.node for vertex in fleet.plan.workers(role)}) == 1 else ""

    make: Callable[..., Ranks] = load_object(_RANKS, "")
    ranks = make(clients, revive=failover.restored, host=host)
    failover.replaced = ranks.replaced
    names = ", ".join(failover.members)
    if check is not None:
        tries = NodeCheck(check, clients, places=lambda: fleet.plan.workers(role), host=host)
        sound = Soundness(role, check, tries, mover, recheck_s=recheck_s)
        with budget.phase(f"the check of {names}"):
            await sound.ensure(group, journal)
        failover.check = sound.recheck
    with budget.phase(f"the rendezvous of {names}"):
        await ranks.meet()
    return ranks
