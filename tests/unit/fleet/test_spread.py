"""Several equal workers behind one port."""

from collections import Counter

import anyio
import pytest
from anyio.lowlevel import checkpoint

from backends.sim.grader import ScriptedGrader
from conductor.fleet.attendance import Attendance
from conductor.fleet.spread import Executors, Graders
from protocols.errors import InvariantError, WorkerLost
from protocols.grading import GradeRequest
from protocols.inference import AbortReport
from protocols.messages import LeaseId, PayloadRef, WorkerId
from protocols.prompts import Prompt, TextPrompt
from protocols.rollouts import GroupReceipt, RolloutLease

A, B = WorkerId("reward/0"), WorkerId("reward/1")


def request_for(number: int) -> GradeRequest:
    return GradeRequest(
        lease_id=LeaseId(f"L{number}"),
        attempt=0,
        prompt=Prompt(position=number, content=TextPrompt(text="p")),
        payload=PayloadRef(owner="o", key="k"),
        samples=(0,),
    )


async def test_calls_go_to_whoever_has_the_fewest_open() -> None:
    """A slow grader must not hold up what a free one could grade."""
    slow, fast = ScriptedGrader(grade_s=10.0), ScriptedGrader(grade_s=1.0)
    graders = Graders({A: slow, B: fast}, Attendance())

    async def one_after_the_other() -> None:
        for number in range(1, 6):
            await graders.grade(request_for(number))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(graders.grade, request_for(0))
        tasks.start_soon(one_after_the_other)
    assert Counter({"slow": len(slow.requests), "fast": len(fast.requests)}) == {"slow": 1, "fast": 5}


async def test_a_call_that_fails_or_is_cancelled_counts_no_more() -> None:
    """What was counted up and never down would starve a worker."""

    def refuse(request: GradeRequest) -> list[object]:
        raise WorkerLost(worker=A, cause="it crashed")

    first, second = ScriptedGrader(refuse), ScriptedGrader(grade_s=1.0)  # type: ignore[arg-type]
    graders = Graders({A: first, B: second}, Attendance())
    for number in range(3):
        with pytest.raises(WorkerLost):
            await graders.grade(request_for(number))
    with anyio.move_on_after(0.5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_ignoring_loss, graders, 3)
            tasks.start_soon(graders.grade, request_for(4))
    with pytest.raises(WorkerLost):
        await graders.grade(request_for(5))
    assert len(first.requests) == 5


async def _ignoring_loss(graders: Graders, number: int) -> None:
    with pytest.raises(WorkerLost):
        await graders.grade(request_for(number))


class Executor:
    """Answers an abort with what it was given."""

    def __init__(self, answer: AbortReport | Exception) -> None:
        self._answer = answer
        self.aborted: list[str] = []

    async def generate(self, lease: RolloutLease) -> GroupReceipt:
        raise NotImplementedError

    async def abort(self, prefix: str) -> AbortReport:
        self.aborted.append(prefix)
        await checkpoint()
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


async def test_an_abort_reaches_every_executor_and_one_that_is_lost_is_unconfirmed() -> None:
    """I46: a request goes on where nobody aborts it; behind one port, that is every worker."""
    first = Executor(AbortReport(confirmed=frozenset({"x/0"}), unconfirmed=frozenset({"x/1"})))
    second = Executor(AbortReport(confirmed=frozenset({"x/2"})))
    lost = Executor(WorkerLost(worker="episode/2", cause="it crashed"))
    workers = {WorkerId(f"episode/{number}"): one for number, one in enumerate((first, second, lost))}
    report = await Executors(workers, Attendance()).abort("x/")
    assert report == AbortReport(confirmed=frozenset({"x/0", "x/2"}), unconfirmed=frozenset({"x/1", "episode/2"}))
    assert first.aborted == second.aborted == lost.aborted == ["x/"]


async def test_an_abort_that_fails_for_good_fails_as_it_did_when_all_were_asked() -> None:
    """No exception group crosses a port."""
    broken, other = Executor(InvariantError("a rule was broken")), Executor(AbortReport())
    with pytest.raises(InvariantError, match="a rule was broken"):
        await Executors({WorkerId("episode/0"): broken, WorkerId("episode/1"): other}, Attendance()).abort("x/")
    assert other.aborted == ["x/"]


async def test_a_worker_that_is_away_gets_no_calls() -> None:
    """One that is dead answers at once that it is, has the fewest calls open, and drew all of them."""
    attendance, lost, there = Attendance(), ScriptedGrader(grade_s=1.0), ScriptedGrader(grade_s=1.0)
    graders = Graders({A: lost, B: there}, attendance)
    with attendance.tended():
        attendance.leave(A)
        for number in range(3):
            await graders.grade(request_for(number))
        attendance.come_back(A)
        await graders.grade(request_for(3))
    assert (len(lost.requests), len(there.requests)) == (1, 3)


async def test_while_all_are_away_a_call_waits_for_the_first_to_come_back() -> None:
    """A grader takes seconds to start anew; a call that failed at once would use up the attempts of its group."""
    attendance, grader = Attendance(), ScriptedGrader(grade_s=1.0)
    graders = Graders({A: grader}, attendance)

    async def come_back() -> None:
        await anyio.sleep(30)
        attendance.come_back(A)

    with attendance.tended():
        attendance.leave(A)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(come_back)
            await graders.grade(request_for(0))
        assert anyio.current_time() == pytest.approx(31)
        attendance.leave(A)
    await graders.grade(request_for(1))  # nobody brings it back any more: the call itself says what is wrong
