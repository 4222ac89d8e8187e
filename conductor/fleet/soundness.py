"""What is done about nodes that a check finds broken or slow: they are set aside, and who is on them moves."""

from collections.abc import Mapping

import anyio

from conductor.config import CheckConfig
from conductor.core.node_check import Findings
from conductor.fleet.checking import NodeCheck
from conductor.fleet.course import Happening
from conductor.fleet.group import WorkerGroup
from conductor.fleet.journal import Journal
from conductor.fleet.moving import Mover
from protocols.aio import deadline
from protocols.errors import Infeasible
from protocols.incidents import Verdict
from protocols.messages import WorkerId


class Soundness:
    """Lets no rank train on a node that does not pass.

    Args:
        role: Whose workers are checked.
        cfg: What is slow, and whether slow nodes are set aside.
        check: Tries the nodes.
        mover: Finds other places.
        recheck_s: How long a check may take while the run waits, in seconds.
    """

    def __init__(self, role: str, cfg: CheckConfig, check: NodeCheck, mover: Mover, *, recheck_s: float) -> None:
        self._role = role
        self._cfg = cfg
        self._check = check
        self._mover = mover
        self._recheck_s = recheck_s

    async def ensure(self, group: WorkerGroup, journal: Journal) -> None:
        """Check the nodes of a group, and move its workers until all pass; no worker of it works yet.

        A node that is set aside may be used again after a while: the caller bounds it.

        Raises:
            Infeasible: There is no place for those on nodes that did not pass; it names them, with the numbers.
            ConductorError: Who was moved could not be launched.
        """
        began, attempts, said = anyio.current_time(), 0, list[str]()
        lost: dict[WorkerId, None] = {}
        while found := self._refused(await self._look(journal)):
            workers = self._check.workers(found)
            said.append(_told(found))
            self._mover.set_aside(workers)
            moved = await self._mover.move(group, workers, journal)
            if len(moved) < len(workers):
                what = f"places of {self._role} that pass the check ({_told(found)})"
                members = len(group.members)
                raise Infeasible(what=what, asked=members, available=members - len(workers))
            lost |= dict.fromkeys(workers)
            said += moved
            attempts += 1
            await group.replace(workers)
        if lost:
            await self._tell(journal, tuple(lost), "restored", "; ".join(said), attempts=attempts, began=began)

    async def recheck(self, journal: Journal) -> tuple[WorkerId, ...]:
        """Check the nodes again, since some are new; set those aside that do not pass, and return whose they are.

        Raises:
            DeadlineExceeded: It took longer than it may.
        """
        with deadline(f"the check of the nodes of {self._role}", self._recheck_s):
            findings = await self._look(journal)
        workers = self._check.workers(self._refused(findings))
        self._mover.set_aside(workers)
        return workers

    async def _look(self, journal: Journal) -> Findings:
        """Check, and tell of nodes that are slow."""
        began = anyio.current_time()
        findings = await self._check.run()
        faulty, slow = dict(findings.faulty), _slow(findings)
        journal.log.info("nodes.checked", role=self._role, median_s=findings.median_s, faulty=faulty, slow=slow)
        if slow and not self._cfg.exclude_slow:
            await self._tell(journal, self._check.workers(slow), "noted", _told(slow), attempts=0, began=began)
        return findings

    def _refused(self, findings: Findings) -> dict[str, str]:
        """Return which nodes must not be used, and why."""
        return dict(findings.faulty) | (_slow(findings) if self._cfg.exclude_slow else {})

    async def _tell(
        self,
        journal: Journal,
        workers: tuple[WorkerId, ...],
        verdict: Verdict,
        detail: str,
        *,
        attempts: int,
        began: float,
    ) -> None:
        happening = Happening(
            began=began,
            version=journal.trained(),
            cause="worker",
            lost=workers,
            level="node",
            verdict=verdict,
            attempts=attempts,
            details=[f"the check of nodes: {detail}"],
        )
        await journal.close(happening.incident(self._role))


def _slow(findings: Findings) -> dict[str, str]:
    median = f"the median of {findings.median_s:.3g} s"
    return {unit: f"{ratio:.1f} times {median}" for unit, ratio in findings.slow.items()}


def _told(said: Mapping[str, str]) -> str:
    return "; ".join(f"{unit} {why}" for unit, why in said.items())
