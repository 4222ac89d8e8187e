"""What every grader keeps to."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import anyio
import pytest

from backends.graders import function
from backends.sim.grader import ScriptedGrader
from backends.sim.payloads import ScriptedPayloads
from conductor.fleet.attendance import Attendance
from conductor.fleet.spread import Graders
from protocols.adapters import Host
from protocols.backend import PayloadPort
from protocols.errors import Transient
from protocols.grading import Grade, GradeFault, GradeRequest, GraderPort
from protocols.messages import LeaseId, PayloadRef, WorkerId
from protocols.prompts import Prompt, TextPrompt
from protocols.rollouts import GroupPayload, SamplePayload
from protocols.sections import Site
from tests.support.wired import wired

OpenGrader = Callable[[PayloadPort], AbstractAsyncContextManager[GraderPort]]

DEADLINE_S = 0.5

REWARD = """
import asyncio, math, time

def plain(completion):
    match completion:
        case "raise": raise ValueError("no such answer")
        case "exit": raise SystemExit(0)
        case "interrupt": raise KeyboardInterrupt
        case "leak": raise asyncio.CancelledError("not yours")
        case "nan": return math.nan
        case "infinite": return -math.inf
        case "huge": return 10 ** 400
        case "none": return None
        case "text": return "1.0"
        case "list": return [1.0]
        case "no reward": return {"score": 1.0}
        case "bad part": return 1.0, {"format": None}
        case "true": return True
        case "integer": return 3
        case "breakdown": return {"reward": 0.5, "format": 1, "length": -0.5}
        case "pair": return 0.25, {"format": 0.0}
    return float(completion)

def reward(prompt, completion):
    print("rewards may print", completion)
    while completion == "hang": pass
    return plain(completion)

async def areward(prompt, completion):
    await asyncio.sleep(0)
    if completion == "hang": await asyncio.Event().wait()
    if completion == "leak": asyncio.current_task().cancel(); await asyncio.sleep(1)
    return plain(completion)
"""


def _function(folder: Path, name: str, *, cheap: bool = False) -> OpenGrader:
    (folder / "reward.py").write_text(REWARD)
    cfg = function.Config(function=f"reward.py:{name}", cheap=cheap, deadline_s=DEADLINE_S)

    @asynccontextmanager
    async def opened(payloads: PayloadPort) -> AsyncGenerator[GraderPort]:
        async with function.open(cfg, Host(site=Site(job_dir=str(folder)), payloads=payloads)) as grader:
            yield grader

    return opened


@asynccontextmanager
async def _scripted(payloads: PayloadPort) -> AsyncGenerator[GraderPort]:
    yield ScriptedGrader(lambda request: [Grade(reward=float(sample)) for sample in request.samples])


@asynccontextmanager
async def _two(payloads: PayloadPort) -> AsyncGenerator[GraderPort]:
    async with _scripted(payloads) as first, _scripted(payloads) as second:
        yield Graders({WorkerId("reward/0"): first, WorkerId("reward/1"): second}, Attendance())


PROCESSES = pytest.param("processes", marks=pytest.mark.real_time)


def _opener(kind: str, folder: Path) -> OpenGrader:
    kind, _, encoded = kind.partition("-")
    match kind:
        case "processes":
            opened = _function(folder, "reward")
        case "async":
            opened = _function(folder, "areward")
        case "cheap":
            opened = _function(folder, "reward", cheap=True)
        case "two":
            opened = _two
        case _:
            opened = _scripted
    return wired(GraderPort, opened) if encoded else opened


@pytest.fixture(
    params=[
        PROCESSES,
        pytest.param("processes-wired", marks=pytest.mark.real_time),
        *("async", "async-wired", "cheap", "cheap-wired", "two", "scripted", "scripted-wired"),
    ]
)
def open_grader(request: pytest.FixtureRequest, tmp_path: Path) -> OpenGrader:
    return _opener(request.param, tmp_path)


@pytest.fixture(params=[PROCESSES, "async", "async-wired", "cheap"])
def open_user_grader(request: pytest.FixtureRequest, tmp_path: Path) -> OpenGrader:
    """Of those that call a user's function."""
    return _opener(request.param, tmp_path)


@pytest.fixture(params=[PROCESSES, "async"])
def open_cutting_grader(request: pytest.FixtureRequest, tmp_path: Path) -> OpenGrader:
    """Of those that can cut a function which hangs."""
    return _opener(request.param, tmp_path)


async def lend(payloads: PayloadPort, completions: Sequence[str], lease: str = "L0") -> GradeRequest:
    samples = tuple(SamplePayload(token_ids=(1,), logprobs=(-1.0,), text=text) for text in completions)
    ref = PayloadRef(owner=f"p.1/{lease}/0/", key="group")
    group = GroupPayload(prompt_ids=(1,), prompt_text="p", temperature=1.0, samples=samples)
    await payloads.put(ref, group)
    return GradeRequest(
        lease_id=LeaseId(lease),
        attempt=0,
        prompt=Prompt(position=0, content=TextPrompt(text="p"), fields={"answer": 1}),
        payload=ref,
        samples=tuple(range(len(samples))),
    )


async def graded(opened: OpenGrader, *completions: str) -> list[Grade | GradeFault]:
    payloads = ScriptedPayloads()
    async with opened(payloads) as grader:
        return list((await grader.grade(await lend(payloads, completions))).grades)


async def test_one_answer_a_sample_in_the_order_asked(open_grader: OpenGrader) -> None:
    payloads = ScriptedPayloads()
    async with open_grader(payloads) as grader:
        request = await lend(payloads, [str(index) for index in range(6)], lease="L4")
        asked = GradeRequest(
            lease_id=request.lease_id, attempt=2, prompt=request.prompt, payload=request.payload, samples=(4, 0, 5)
        )
        report = await grader.grade(asked)
        assert (report.lease_id, report.attempt) == ("L4", 2)
        assert report.grades == (Grade(reward=4.0), Grade(reward=0.0), Grade(reward=5.0))
        nothing = GradeRequest(
            lease_id=request.lease_id, attempt=0, prompt=request.prompt, payload=request.payload, samples=()
        )
        assert (await grader.grade(nothing)).grades == ()


async def test_any_number_of_requests_at_a_time(open_grader: OpenGrader) -> None:
    payloads = ScriptedPayloads()
    async with open_grader(payloads) as grader:
        requests = [await lend(payloads, [str(index) for index in range(3)], lease=f"L{n}") for n in range(20)]
        reports: list[str] = []

        async def grade(request: GradeRequest) -> None:
            report = await grader.grade(request)
            assert [one.reward for one in report.grades if isinstance(one, Grade)] == [0.0, 1.0, 2.0]
            reports.append(report.lease_id)

        async with anyio.create_task_group() as tasks:
            for request in requests:
                tasks.start_soon(grade, request)
        assert sorted(reports) == sorted(request.lease_id for request in requests)


async def test_a_call_reaches_a_checkpoint(open_grader: OpenGrader) -> None:
    payloads = ScriptedPayloads()
    async with open_grader(payloads) as grader:
        request = await lend(payloads, ["0"])
        with anyio.CancelScope() as scope:
            scope.cancel()
            await grader.grade(request)
        assert scope.cancelled_caught
        assert (await grader.grade(request)).grades == (Grade(reward=0.0),), "and can be repeated"


FAULTS = {
    "raise": "raised",
    "exit": "raised",
    "interrupt": "raised",
    "leak": "cancelled",
    "nan": "not_a_number",
    "infinite": "not_a_number",
    "huge": "not_a_number",
    "none": "wrong_type",
    "text": "wrong_type",
    "list": "wrong_type",
    "no reward": "wrong_type",
    "bad part": "wrong_type",
}


async def test_every_failure_is_classed_and_none_is_a_zero(open_user_grader: OpenGrader) -> None:
    """I58, I61: an error became a reward of 0, a None became NaN. I18: a leaked cancellation killed the producer."""
    mixed = [text for failure in FAULTS for text in (failure, "1")]
    grades = await graded(open_user_grader, *mixed)
    faults, others = grades[::2], grades[1::2]
    assert others == [Grade(reward=1.0)] * len(FAULTS), "the rest of the group is unharmed"
    kinds = [fault.kind if isinstance(fault, GradeFault) else fault for fault in faults]
    assert dict(zip(FAULTS, kinds, strict=True)) == FAULTS
    raised = faults[0]
    assert isinstance(raised, GradeFault)
    assert raised.detail.endswith("ValueError: no such answer")
    assert "reward.py" in raised.detail


async def test_numbers_and_breakdowns_are_grades(open_user_grader: OpenGrader) -> None:
    assert await graded(open_user_grader, "0", "-2.5", "true", "integer", "breakdown", "pair") == [
        Grade(reward=0.0),
        Grade(reward=-2.5),
        Grade(reward=1.0),
        Grade(reward=3.0),
        Grade(reward=0.5, parts={"format": 1.0, "length": -0.5}),
        Grade(reward=0.25, parts={"format": 0.0}),
    ]


async def test_a_lost_payload_is_transient(open_user_grader: OpenGrader) -> None:
    payloads = ScriptedPayloads()
    async with open_user_grader(payloads) as grader:
        request = await lend(payloads, ["1"])
        await payloads.release("")
        with pytest.raises(Transient):
            await grader.grade(request)


async def test_a_hang_costs_its_own_sample_and_the_deadline(open_cutting_grader: OpenGrader) -> None:
    """I59: one reward without a deadline froze training."""
    grades = await graded(open_cutting_grader, "1", "hang", "2", "hang", "3")
    kinds = [one.reward if isinstance(one, Grade) else one.kind for one in grades]
    assert kinds == [1.0, "timed_out", 2.0, "timed_out", 3.0]
    assert isinstance(grades[1], GradeFault)
    assert f"{DEADLINE_S:g} s" in grades[1].detail


async def test_cancelling_stops_code_that_hangs(open_cutting_grader: OpenGrader) -> None:
    payloads = ScriptedPayloads()
    async with open_cutting_grader(payloads) as grader:
        with anyio.move_on_after(DEADLINE_S / 5) as scope:
            await grader.grade(await lend(payloads, ["hang"]))
        assert scope.cancelled_caught
        assert (await grader.grade(await lend(payloads, ["7"]))).grades == (Grade(reward=7.0),)
