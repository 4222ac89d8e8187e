"""Brings lost workers of a role back: who notices, what is decided, and the incident that tells of it."""

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial

import anyio

from conductor.core.failover import Raise, Resize, Restart, Situation, Strikes, decide
from conductor.fleet.attendance import Attendance
from conductor.fleet.course import Course, cause_of
from conductor.fleet.group import Sight, WorkerGroup
from conductor.fleet.journal import Journal
from conductor.fleet.master import Master
from conductor.fleet.together import all_or_first
from protocols.aio import deadline
from protocols.errors import ConductorError, DeadlineExceeded, PortFailed, StateLost, Transient, WorkerLost
from protocols.fleet import Cause, PlannedRole, Vertex
from protocols.messages import WeightVersion, WorkerId

Probe = Callable[[WorkerId], Awaitable[object]]
"""Asks a worker something that takes no work."""

Drain = Callable[[Collection[WorkerId]], Awaitable[None]]
"""Gives some workers nothing more to do, and waits, not for ever, until they have done what they had."""

Lose = Callable[[Collection[WorkerId], Cause], None]
"""Takes note that workers were lost where they are."""

Move = Callable[[Collection[WorkerId], Journal], Awaitable[tuple[str, ...]]]
"""Gives workers other places that were lost, where that is better; says what was done."""

LetGo = Callable[[Collection[WorkerId], Journal], Awaitable[str]]
"""Ends lost workers for good; says why it cannot be done, or nothing."""

Check = Callable[[Journal], Awaitable[tuple[WorkerId, ...]]]
"""Checks the nodes of the workers, now that some are new; returns those on nodes that must not be used."""

_LOOK_S = 2.0
"""Between two looks at the workers; a call that finds one lost does not wait for it."""

_SILENCES = 3
"""Probes in a row that a worker may leave unanswered."""


class Failover:
    """Tends the workers of one role as long as the run lasts.

    ``run`` is the one task that decides and launches; everybody else only says what they found. A failover is a call in
    it: it begins with lost workers, and ends with an incident and a verdict.

    Args:
        role: As it was planned.
        group: Its workers.
        attendance: Who of them is there, where others know it already.
        holds_state: Whether what was trained is in them alone.
        replaced: Told of each worker that is another process now, before anybody calls that.
        probe: Finds out whether a worker hangs; None: its launcher does.
        answer_s: Within how many seconds a probe is answered.

    Attributes:
        replaced: As above.
        drain: Before workers are replaced whose places are about to be taken away; None: they are replaced when they
            are gone.
        lose: When workers are lost, and again when they cannot be launched: all of them, unless it is known which one
            it was; None: nobody counts it.
        move: Before workers are launched again; None: they stay where they are.
        check: When workers are on other nodes than before; None: those are trusted.
        let_go: Where its master decides to go on without lost workers; None: the role cannot.
        master: Is told of the workers, and asked before anything is decided; None: the role has none.
    """

    def __init__(
        self,
        role: PlannedRole,
        group: WorkerGroup,
        *,
        attendance: Attendance | None = None,
        holds_state: bool = False,
        replaced: Callable[[WorkerId], None] | None = None,
        probe: Probe | None = None,
        answer_s: float = 5.0,
    ) -> None:
        self.role = role
        self.attendance = attendance or Attendance()
        self.replaced = replaced
        self.drain: Drain | None = None
        self.lose: Lose | None = None
        self.move: Move | None = None
        self.check: Check | None = None
        self.let_go: LetGo | None = None
        self.master: Master | None = None
        self._group = group
        self._holds_state = holds_state
        self._probe = probe
        self._answer_s = answer_s
        self._strikes: defaultdict[WorkerId, Strikes] = defaultdict(Strikes)
        self._restarted = Strikes()
        self._silent: Counter[WorkerId] = Counter()
        self._noticed: set[WorkerId] = set()
        self._turn = anyio.Lock()  # one changes who the members are, or launches them again
        self._hint = anyio.Event()

    @property
    def members(self) -> tuple[WorkerId, ...]:
        """The workers, in the order of the plan."""
        return self._group.members

    def suspect(self, worker: WorkerId) -> None:
        """Take note that a call found a worker lost, and look at it at once."""
        self.attendance.leave(worker)
        self._hint.set()

    async def restored(self, worker: WorkerId, loss: WorkerLost) -> None:
        """Wait until a worker is there again that somebody found lost.

        Raises:
            WorkerLost: ``loss``: nobody brings it back any more.
        """
        self.suspect(worker)
        await self.attendance.wait_for([worker])
        if worker in self.attendance.away:
            raise loss

    async def grow(self, workers: Sequence[Vertex]) -> None:
        """Launch those of some workers that are no members yet; lost ones are brought back meanwhile.

        Args:
            workers: All members, and who is to join them. Members alone: end what was launched where this failed.

        Raises:
            ConductorError: One could not be launched.
        """
        before = self.members
        await self._group.scale(tuple(workers))
        for worker in self.members:
            if worker not in before:
                self._tell_master(worker)

    async def shrink(self, workers: Sequence[Vertex]) -> None:
        """End all members but some for good; never while others are being brought back.

        Raises:
            ConductorError: One could not be ended.
        """
        async with self._turn:
            await self.end(workers)

    async def end(self, workers: Sequence[Vertex]) -> None:
        """End all members but some for good, in a failover of theirs; else ``shrink`` does."""
        before = self.members
        await self._group.scale(tuple(workers))
        for worker in sorted(set(before).difference(self.members)):
            self._strikes.pop(worker, None)
            del self._silent[worker]
            self._noticed.discard(worker)
            self.attendance.come_back(worker)
            self._tell_master(worker, "it was ended for good")

    async def run(self, journal: Journal) -> None:
        """Bring back what is lost until cancelled.

        Raises:
            ConductorError: The job is given up.
        """
        with self.attendance.tended():
            for worker in self.members:
                self._tell_master(worker)
            acts: dict[str, Callable[[], Awaitable[None]]] = {
                f"failover of {self.role.name}": partial(self._tend, journal)
            }
            if self._probe is not None:
                acts[f"probes of {self.role.name}"] = partial(self._ask_all, self._probe, journal)
            if self.master is not None:
                acts[f"master of {self.role.name}"] = self.master.run
            await all_or_first(acts)

    async def _tend(self, journal: Journal) -> None:
        while True:
            sight = await self._look(journal)
            async with self._turn:
                there = {worker: loss for worker, loss in sight.losses.items() if worker in self.members}
                leaving = tuple(worker for worker in sight.leaving if worker in self.members)
                if there:
                    await self._fail_over(there, journal)
                elif leaving:
                    await self._heed(leaving, journal)

    async def _heed(self, leaving: tuple[WorkerId, ...], journal: Journal) -> None:
        """Do what can be done before places are taken away, once for each notice."""
        self._noticed.update(leaving)
        journal.log.warning("notice.given", role=self.role.name, workers=leaving)
        if self._holds_state:
            journal.save()
        elif self.drain is not None:
            cause = "its place is about to be taken away"
            losses = {worker: WorkerLost(worker=worker, cause=cause, preempted=True) for worker in leaving}
            await self._fail_over(losses, journal, self.drain)

    async def _look(self, journal: Journal) -> Sight:
        """Wait until some workers are lost, or notice of that is given; whoever was only suspected is there again."""
        while True:
            with anyio.move_on_after(_LOOK_S):
                await self._hint.wait()
            self._hint = anyio.Event()
            suspected = self.attendance.away
            try:
                sight = await self._group.look()
            except Transient as exc:
                journal.log.warning("workers.not_polled", role=self.role.name, error=str(exc))
                continue
            hanging = {worker: self._hanging(worker) for worker, times in self._silent.items() if times >= _SILENCES}
            losses = sight.losses | hanging
            for worker in suspected - losses.keys():
                self.attendance.come_back(worker)
            leaving = tuple(worker for worker in sight.leaving if worker not in self._noticed)
            if losses or leaving:
                return Sight(losses=losses, leaving=leaving)

    async def _fail_over(
        self, losses: Mapping[WorkerId, WorkerLost], journal: Journal, drain: Drain | None = None
    ) -> None:
        """One failover, of those that were lost for one cause, or will be once they are drained.

        Others are found by the next look.
        """
        cause = cause_of(next(iter(losses.values())))
        lost = tuple(worker for worker, loss in losses.items() if cause_of(loss) == cause)
        course = Course(
            began=anyio.current_time(),
            version=journal.trained(),
            cause=cause,
            failure=losses[lost[0]],
            lost=lost,
            left=len(self.members) - len(losses),
            details=[str(losses[worker]) for worker in lost],
        )
        journal.log.warning("failover.began", role=self.role.name, workers=lost, cause=cause, error=course.details[0])
        for worker in lost:
            self.attendance.leave(worker)
            self._tell_master(worker, str(losses[worker]))
        if drain is not None:
            await drain(lost)
        given_up: ConductorError | None = None
        try:
            await self._restore(course, journal)
        except StateLost:
            raise  # not the role alone: who conducts the run decides, and tells of it
        except ConductorError as exc:
            given_up = exc
        if given_up is None:
            if course.verdict == "restored":
                self._welcome(course.lost)
            await journal.close(course.incident(self.role.name))
            return
        course.level, course.verdict = "job", "given_up"
        course.details.append(str(given_up))
        await journal.close(course.incident(self.role.name))
        raise given_up

    async def _restore(self, course: Course, journal: Journal) -> None:
        """Do what is decided until the workers are there.

        Raises:
            ConductorError: It is decided to give up, or they cannot be launched whatever is tried.
        """
        cause, failed = course.cause, course.lost
        while True:
            for worker in course.lost:
                self._strikes[worker].strike(cause, journal.trained())
            decision = await self._decide(course, cause, journal)
            if isinstance(decision, Raise):
                raise decision.error from course.failure
            if decision is None:
                return
            if self.lose is not None:
                self.lose(failed, cause)
            await self._follow(decision, course, journal.trained())
            course.attempts += 1
            try:
                moved = () if self.move is None else await self.move(course.lost, journal)
                course.details += moved
                await self._group.replace(course.lost)
                course.unchecked |= bool(moved)
                if course.unchecked:
                    course.level = "node"
                    await self._check(course, journal)
            except (Transient, PortFailed) as exc:
                course.failure, cause = exc, cause_of(exc)
                failed = (WorkerId(exc.worker),) if isinstance(exc, WorkerLost) else course.lost
                course.details.append(str(exc))
                journal.log.warning("failover.failed", role=self.role.name, attempts=course.attempts, error=str(exc))
            else:
                return

    async def _decide(self, course: Course, cause: Cause, journal: Journal) -> Restart | Raise | None:
        """Return what the role's master decides, as long as its budget lasts, or else the default policy.

        None: it goes on without those that are lost.
        """
        situation = self._situation(course, cause, journal.trained())
        default = decide(situation)
        if self.master is None or isinstance(default, Raise) or default.role:  # the budget is spent
            return default
        claimed = await self.master.claim(situation, may_shrink=self.let_go is not None)
        if isinstance(claimed, Resize):
            return None if await self._let_go(course, journal) else default
        return claimed or default

    async def _let_go(self, course: Course, journal: Journal) -> bool:
        """Go on without those that are lost; returns whether that could be done."""
        why = "the role cannot" if self.let_go is None else await self.let_go(course.lost, journal)
        if why:
            journal.log.warning("workers.not_let_go", role=self.role.name, workers=course.lost, why=why)
            return False
        course.level, course.verdict = "role", "resized"
        course.details.append(f"{self.role.name} goes on with {len(self.members)}")
        return True

    async def _check(self, course: Course, journal: Journal) -> None:
        """Check the nodes of a role whose workers have moved, however often it takes until all pass.

        Raises:
            WorkerLost: Some must not be used; their workers belong to what is lost.
        """
        faulty = () if self.check is None else await self.check(journal)
        if faulty:
            course.lost = tuple(member for member in self.members if member in {*course.lost, *faulty})
            course.left = len(self.members) - len(course.lost)
            for worker in faulty:
                self.attendance.leave(worker)
            raise WorkerLost(worker=faulty[0], cause=f"the nodes of {', '.join(faulty)} did not pass the check")

    async def _follow(self, decision: Restart, course: Course, version: WeightVersion) -> None:
        if decision.role:
            self._restarted.strike("worker", version)
            course.level, course.lost, course.left = "role", self.members, 0
            for worker in course.lost:
                self.attendance.leave(worker)
        await anyio.sleep(decision.after_s)

    def _situation(self, course: Course, cause: Cause, version: WeightVersion) -> Situation:
        return Situation(
            role=self.role,
            lost={worker: dict(self._strikes[worker].counts) for worker in course.lost},
            cause=cause,
            left=course.left,
            holds_state=self._holds_state,
            restarted=self._restarted.standing(version),
            failure=str(course.failure),
        )

    def _welcome(self, workers: Collection[WorkerId]) -> None:
        for worker in workers:
            self._silent[worker] = 0
            self._noticed.discard(worker)
            if self.replaced is not None:
                self.replaced(worker)
            self.attendance.come_back(worker)
            self._tell_master(worker)

    def _tell_master(self, worker: WorkerId, why: str | None = None) -> None:
        """Have it told that a worker is there, or why it is not."""
        if self.master is None:
            return
        if why is None:
            self.master.came(worker)
        else:
            self.master.went(worker, why)

    def _hanging(self, worker: WorkerId) -> WorkerLost:
        return WorkerLost(worker=worker, cause=f"it left {_SILENCES} probes of {self._answer_s:g} s unanswered")

    async def _ask_all(self, probe: Probe, journal: Journal) -> None:
        """Ask every worker again and again whether it answers."""
        while True:
            await anyio.sleep(_LOOK_S)
            there = [worker for worker in self.members if worker not in self.attendance.away]
            await all_or_first({f"probe of {worker}": partial(self._ask, worker, probe, journal) for worker in there})
            if any(times >= _SILENCES for times in self._silent.values()):
                self._hint.set()

    async def _ask(self, worker: WorkerId, probe: Probe, journal: Journal) -> None:
        try:
            with deadline(f"probe of {worker}", self._answer_s):
                await probe(worker)
        except DeadlineExceeded:
            self._silent[worker] += 1
            return
        except WorkerLost:
            self.suspect(worker)
        except ConductorError as exc:
            journal.log.warning("probe.refused", worker=worker, error=str(exc))
        self._silent[worker] = 0
