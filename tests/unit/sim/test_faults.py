"""Faults as text, and each kind of them at one call that crosses a port."""

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.sim.faults import Faults, stage_of
from protocols.errors import Transient, WorkerLost
from protocols.faults import KINDS, METHODS, Fault, FaultPlan, parse_plan
from protocols.inference import Completion, EngineStatus, Generation, Segment
from protocols.messages import WeightVersion
from protocols.rollouts import GroupPayload, SamplePayload
from protocols.simulation import Observed

faults = st.sampled_from(KINDS).flatmap(
    lambda kind: st.builds(
        Fault,
        kind=st.just(kind),
        method=st.sampled_from(METHODS[kind]),
        worker=st.none() | st.sampled_from(["rollout/0", "policy/0"]),
        call=st.integers(1, 99),
        lasts_s=st.integers(0, 100).map(float),
    )
)


@given(st.lists(faults, max_size=4))
def test_a_plan_reads_back_from_its_text(planned: list[Fault]) -> None:
    """The command that replays a finding carries the plan as text."""
    plan = FaultPlan(faults=tuple(planned))
    assert parse_plan(str(plan)) == plan


def test_a_fault_may_come_at_a_moment() -> None:
    (fault,) = parse_plan("preemption@Engine:rollout/0@12.5+30").faults
    assert (fault.worker, fault.call, fault.at_s, fault.lasts_s) == ("rollout/0", None, 12.5, 30.0)
    assert str(fault) == "preemption@Engine:rollout/0@12.5+30"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("crash", "is no fault"),
        ("burn@Engine.generate", "is no kind"),
        ("slow_ledger@Engine.generate#1", "cannot happen"),
        ("partial_publish@Engine.generate#1", "cannot happen"),
        ("lost_reply@PromptSource.draw#1", "cannot happen"),
    ],
)
def test_a_fault_that_cannot_be_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_plan(text)


@pytest.mark.parametrize(
    ("task", "method", "stage"),
    [
        ("stage admit", "PromptSource.draw", "admit"),
        ("rollout L3", "Engine.generate", "rollout"),
        ("rollout L3", "RolloutExecutor.abort", "abort"),
        ("reward L3", "Grader.grade", "reward"),
        ("reward L3", "Payload.release", "abort"),
        ("stage train", "Payload.release", "train"),
        ("keeper of rollout/1", "Engine.load_weights", "publish"),
        ("abort on rollout/1", "Engine.live_requests", "abort"),
        ("main", "Trainer.stage_weights", "run"),
    ],
)
def test_a_call_belongs_to_the_stage_whose_task_makes_it(task: str, method: str, stage: str) -> None:
    assert stage_of(task, method) == stage


class Line:
    """Calls of one method of one worker over a line on which one fault happens."""

    def __init__(self, text: str) -> None:
        self.plan = parse_plan(text)
        self.observed = Observed()
        self.faults = Faults(self.plan, self.observed)
        self.carried: list[object] = []
        self.crashed: list[tuple[str, float]] = []
        self.faults.crash = lambda worker, lasts_s: self.crashed.append((worker, lasts_s))
        self.faults.lose_weights = lambda worker: self.crashed.append((worker, -1.0))

    async def call(self, reply: Any) -> Any:
        async def carry() -> Any:
            await anyio.lowlevel.checkpoint()
            self.carried.append(reply)
            return reply

        return await self.faults.through(self.plan.faults[0].method, "w/0", (), carry)


@pytest.mark.parametrize(("kind", "carried"), [("lost_request", []), ("lost_reply", ["a"])])
async def test_a_lost_message_fails_after_its_time(kind: str, carried: list[str]) -> None:
    """A lost request was not carried out, a lost reply was."""
    line = Line(f"{kind}@Grader.grade#1+3")
    with pytest.raises(Transient, match="was lost"):
        await line.call("a")
    assert line.carried == carried
    assert anyio.current_time() == pytest.approx(3.0)
    assert await line.call("b") == "b", "it happens once"
    assert [(hit.index, hit.stage) for hit in line.observed.hits] == [(0, "run")]


async def test_the_nth_call_is_the_one_that_is_hit() -> None:
    line = Line("lost_request@Grader.grade#3+0")
    assert [await line.call("a"), await line.call("b")] == ["a", "b"]
    with pytest.raises(Transient):
        await line.call("c")


async def test_from_a_moment_on_the_first_call_is_hit() -> None:
    line = Line("lost_request@Grader.grade@5+0")
    await line.call("a")
    await anyio.sleep(5)
    with pytest.raises(Transient):
        await line.call("b")


async def test_another_worker_is_left_alone() -> None:
    line = Line("lost_request@Grader.grade:w/1#1+0")
    assert await line.call("a") == "a"
    assert not line.observed.hits


async def test_a_crash_ends_the_worker_and_the_call() -> None:
    line = Line("crash@Engine.generate#1+7")
    with pytest.raises(WorkerLost):
        await line.call("a")
    assert (line.crashed, line.carried) == ([("w/0", 7.0)], [])


async def test_half_of_a_publish_leaves_the_engine_without_weights() -> None:
    line = Line("partial_publish@Engine.load_weights#1")
    with pytest.raises(Transient, match="half"):
        await line.call(WeightVersion(1))
    assert (line.crashed, line.carried) == ([("w/0", -1.0)], [])


@pytest.mark.parametrize(("kind", "method"), [("slow", "Engine.status"), ("slow_ledger", "Ledger.append")])
async def test_a_slow_call_is_carried_out_and_late(kind: str, method: str) -> None:
    line = Line(f"{kind}@{method}#1+4")
    assert await line.call("a") == "a"
    assert anyio.current_time() == pytest.approx(4.0)


async def test_a_slow_ledger_keeps_the_order_of_the_calls() -> None:
    """``LedgerPort``: appends are written in the order of the calls; or the search finds its own bugs."""
    line = Line("slow_ledger@Ledger.append#1+4")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(line.call, "first")
        tasks.start_soon(line.call, "second")
    assert line.carried == ["first", "second"]


async def test_behind_an_append_that_hangs_all_hang() -> None:
    """``LedgerPort``: the record has no gap."""
    line = Line("hang@Ledger.append#1")
    with anyio.move_on_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(line.call, "first")
            await anyio.sleep(1)
            tasks.start_soon(line.call, "second")
    assert line.carried == []


async def test_a_doubled_reply_is_the_answer_to_the_next_call() -> None:
    line = Line("doubled_reply@Grader.grade#1")
    assert [await line.call(name) for name in "abc"] == ["a", "a", "c"]
    assert line.carried == ["a", "b", "c"]


async def test_reordered_replies_change_places() -> None:
    line, got = Line("reordered_replies@Grader.grade#1+10"), {}

    async def call(name: str) -> None:
        got[name] = await line.call(name)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call, "a")
        tasks.start_soon(call, "b")
    assert got == {"a": "b", "b": "a"}


async def test_without_a_second_reply_the_first_comes_late() -> None:
    line = Line("reordered_replies@Grader.grade#1+10")
    assert await line.call("a") == "a"
    assert anyio.current_time() == pytest.approx(10.0)


def generation(version: int) -> Generation:
    segments = (Segment(version=WeightVersion(version), count=2),)
    one = Completion(request_id="r", token_ids=(1, 2), logprobs=(-1.0, -1.0), segments=segments, finish="stop")
    return Generation(completions=(one,))


@pytest.mark.parametrize(
    ("method", "reply", "version"),
    [
        ("Engine.load_weights", WeightVersion(4), lambda reply: reply),
        ("Engine.status", EngineStatus(version=WeightVersion(4), live=0, context=8), lambda reply: reply.version),
        ("Engine.generate", generation(4), lambda reply: reply.completions[0].segments[0].version),
    ],
)
async def test_a_wrong_version_is_another_one(method: str, reply: Any, version: Callable[[Any], int]) -> None:
    assert version(await Line(f"wrong_version@{method}#1").call(reply)) != 4


async def test_a_damaged_payload_is_not_what_was_put() -> None:
    sample = SamplePayload(token_ids=(1,), logprobs=(-1.0,), text="")
    group = GroupPayload(prompt_ids=(1,), prompt_text="", temperature=1.0, samples=(sample,))
    assert await Line("corrupt_payload@Payload.get#1").call(group) != group
    assert await Line("corrupt_payload@Payload.get#1").call({"version": 1.0}) == {}


async def test_a_trace_tells_every_call_and_every_fault() -> None:
    observed = Observed(trace=[])
    line = Faults(parse_plan("lost_reply@Grader.grade#1+1"), observed)

    async def carry() -> str:
        await anyio.lowlevel.checkpoint()
        return "a"

    call: Callable[[], Awaitable[Any]] = lambda: line.through("Grader.grade", "w/0", ("p.1/L0/",), carry)  # noqa: E731
    with pytest.raises(Transient):
        await call()
    assert [line.split(" ", 1)[1].partition(": ")[2] for line in map(str.strip, observed.trace or ())] == [
        "Grader.grade of w/0 p.1/L0/",
        "",
        "Grader.grade of w/0 p.1/L0/ raises Transient",
    ]
    assert (observed.trace or ())[1].endswith("!! lost_reply@Grader.grade#1+1 in run")
