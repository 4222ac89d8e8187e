"""Every call of a port is bounded by the job's deadlines, and known by name while it is open."""

import math

import anyio
import pytest

from conductor.bounded import bounded
from conductor.config import Deadlines
from conductor.core.waits import Waits
from protocols.aio import clock
from protocols.errors import DeadlineExceeded, EngineBusy
from protocols.inference import InferenceControllerPort, Sampling
from protocols.messages import LeaseId, RegistrationKey
from protocols.prompts import Prompt, TextPrompt
from protocols.rollouts import RolloutExecutorPort, RolloutLease
from tests.support.scripted.executor import ScriptedExecutor
from tests.support.scripted.inference import ScriptedInference


def lease(number: int) -> RolloutLease:
    return RolloutLease(
        lease_id=LeaseId(f"L{number}"),
        attempt=0,
        registration=RegistrationKey(),
        prompt=Prompt(position=number, content=TextPrompt(text="p")),
        group_size=2,
        sampling=Sampling(max_tokens=4),
        seed=0,
    )


async def test_an_open_call_is_known_and_cut_at_its_deadline() -> None:
    """I17: every wait is bounded and named."""
    waits = Waits(clock())
    executor = bounded(
        RolloutExecutorPort, ScriptedExecutor(duration_s=lambda _: math.inf), Deadlines(group=30.0), waits
    )
    async with anyio.create_task_group() as group:

        async def generate() -> None:
            with pytest.raises(DeadlineExceeded, match=r"RolloutExecutor.generate of L7 did not end within 30 s"):
                await executor.generate(lease(7))

        group.start_soon(generate)
        await anyio.sleep(10.0)
        (wait,) = waits
        assert (wait.name, wait.since, wait.deadline_s) == ("RolloutExecutor.generate of L7", 0.0, 30.0)
    assert (len(waits), waits.moved) == (0, 30.0)


async def test_a_call_that_fails_is_not_open_any_more() -> None:
    waits = Waits(clock())
    executor = ScriptedExecutor(failure=lambda _: EngineBusy(engine="e", waiting=1))
    with pytest.raises(EngineBusy):
        await bounded(RolloutExecutorPort, executor, Deadlines(), waits).generate(lease(0))
    assert len(waits) == 0


async def test_whoever_watches_moves_nothing() -> None:
    """A status that is asked for every second would hide a run that stands still."""
    waits = Waits(clock())
    inference = bounded(InferenceControllerPort, ScriptedInference(), Deadlines(), waits)
    await anyio.sleep(5.0)
    await inference.statuses()
    assert waits.moved == 0.0
    await inference.versions()
    assert waits.moved == 5.0
