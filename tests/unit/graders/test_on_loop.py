"""Rewards on the event loop: what user code does to its task stays there."""

import asyncio

import anyio

from backends.graders._on_loop import OnLoop
from backends.graders._reward import Reward, Task
from protocols.grading import Grade


def on_loop(reward: object) -> OnLoop:
    assert callable(reward)
    return OnLoop(Reward(reward), deadline_s=1.0, concurrency=4)


def asks(*completions: str) -> Task:
    return Task(prompt="p", fields={}, completions=list(completions))


def own_task() -> asyncio.Task[object]:
    task = asyncio.current_task()
    assert task is not None
    return task


async def test_a_cheap_reward_that_cancels_its_task_ends_nobody_elses() -> None:
    """I18: a leaked cancellation killed the rollout producer. The calls of a group share a task, which ends there."""

    def reward(completion: str) -> float:
        if completion == "cancel":
            own_task().cancel()
        return float(len(completion))

    grades = await on_loop(reward).grade(asks("a", "cancel", "bb"))
    assert grades == (Grade(reward=1.0), Grade(reward=6.0), Grade(reward=2.0))
    await anyio.sleep(1)
    assert own_task().cancelling() == 0
