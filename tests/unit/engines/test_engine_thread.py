"""The thread that steps a decoder, over a stepper that decodes nothing."""

import threading
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.to_thread
import pytest
from anyio.lowlevel import checkpoint

from backends.engines.torch import thread
from backends.engines.torch.thread import EngineThread
from protocols.errors import Transient, WorkerLost

pytestmark = pytest.mark.real_time


class Stepper:
    """Steps as often as it is told to; each step is an event.

    Attributes:
        left: Steps to make.
        gate: Steps wait for it.
        stepping: Set when the first step begins.
        failure: Raised by the next step.
    """

    def __init__(self) -> None:
        self.left = 0
        self.made = 0
        self.gate = threading.Event()
        self.gate.set()
        self.stepping = threading.Event()
        self.failure: Exception | None = None
        self.events: list[Any] = []

    @property
    def busy(self) -> bool:
        return self.left > 0

    def step(self) -> None:
        self.stepping.set()
        assert self.gate.wait(10)
        if self.failure is not None:
            raise self.failure
        self.left -= 1
        self.made += 1
        self.events.append(self.made)

    def take_events(self) -> Sequence[Any]:
        events, self.events = self.events, []
        return events

    def work(self, steps: int) -> int:
        self.left += steps
        return self.made


class Watched:
    """A thread over a stepper, and what it reported to the event loop."""

    def __init__(self) -> None:
        self.stepper = Stepper()
        self.events: list[Any] = []
        self.lost: list[WorkerLost] = []
        self.thread = EngineThread("worker", self.stepper, on_events=self.events.extend, on_lost=self.lost.append)


@asynccontextmanager
async def running(deadline_s: float = 10.0) -> AsyncGenerator[Watched]:
    watched = Watched()
    watched.thread.start()
    try:
        yield watched
    finally:
        watched.stepper.gate.set()
        await watched.thread.close(deadline_s)  # noqa: ASYNC102 - shielded there


async def test_events_of_an_action_come_before_its_reply() -> None:
    """An abort that is confirmed while its requests still look live would be reported as unconfirmed."""
    async with running() as watched:

        def abort() -> None:
            watched.stepper.events.append("gone")

        await watched.thread.ask(abort)
        assert watched.events == ["gone"]


async def test_actions_run_in_the_order_of_asking() -> None:
    order: list[int] = []
    async with running() as watched:
        for number in range(50):
            watched.thread.post(lambda number=number: order.append(number))
        await watched.thread.ask(lambda: order.append(50))
    assert order == list(range(51))


async def test_requests_made_at_once_arrive_at_once() -> None:
    """Prompts that wait together are computed together only if they reach the thread together."""
    watched = Watched()
    async with anyio.create_task_group() as tasks:
        for _ in range(16):
            tasks.start_soon(watched.thread.ask, lambda: watched.stepper.work(1))
        await anyio.wait_all_tasks_blocked()
        await checkpoint()  # they are handed over behind all that was ready to run
        assert watched.thread._inbox.qsize() == 1
        watched.thread.start()
    await watched.thread.close(10)
    assert watched.stepper.left + watched.stepper.made == 16


async def test_what_an_action_raises_reaches_the_asker_alone() -> None:
    def fail() -> None:
        raise Transient("not now")

    async with running() as watched:
        with pytest.raises(Transient, match="not now"):
            await watched.thread.ask(fail)
        assert await watched.thread.ask(lambda: 3) == 3
        assert watched.lost == []


@pytest.mark.parametrize("where", ["step", "action"])
async def test_a_bug_fails_whoever_waits_and_whoever_comes_later(where: str) -> None:
    """SkyRL PR#1691: the engine was gone, its callers blocked for ever, and the fix was os._exit (I03)."""
    errors: list[WorkerLost] = []

    async def ask(watched: Watched) -> None:
        try:
            await watched.thread.ask(lambda: None)
        except WorkerLost as exc:
            errors.append(exc)

    def bug() -> None:
        raise ZeroDivisionError("bug")

    async with running() as watched:
        watched.stepper.gate.clear()
        await watched.thread.ask(lambda: watched.stepper.work(1))
        await anyio.to_thread.run_sync(watched.stepper.stepping.wait, 10)
        async with anyio.create_task_group() as tasks:
            if where == "action":
                watched.thread.post(bug)
            else:
                watched.stepper.failure = ZeroDivisionError("bug")
            tasks.start_soon(ask, watched)
            await anyio.wait_all_tasks_blocked()
            watched.stepper.gate.set()
        await ask(watched)
        assert [error.worker for error in errors] == ["worker", "worker"]
        assert all("ZeroDivisionError: bug" in error.cause for error in errors)
        assert len(watched.lost) == 1


async def test_a_thread_at_rest_gathers_what_comes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls of one wave come one by one; each step that starts without some of them is one more for all."""
    monkeypatch.setattr(thread, "GATHER_S", 60.0)
    monkeypatch.setattr(thread, "LONGEST_GATHER_S", 60.0)
    async with running() as watched:
        for _ in range(3):
            assert await watched.thread.ask(lambda: watched.stepper.work(1)) == 0
        assert watched.stepper.left == 3


async def test_nobody_waits_for_a_wave_that_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread, "GATHER_S", 60.0)
    async with running() as watched:
        await watched.thread.ask(lambda: watched.stepper.work(1))
        assert await anyio.to_thread.run_sync(watched.stepper.stepping.wait, 10)


async def test_closing_ends_the_thread_and_fails_later_calls() -> None:
    async with running() as watched:
        await watched.thread.ask(lambda: watched.stepper.work(1_000_000))
    assert not any(thread.name == "worker" for thread in threading.enumerate())
    with pytest.raises(WorkerLost, match="closed"):
        await watched.thread.ask(lambda: None)


async def test_closing_does_not_wait_for_ever() -> None:
    """A step that never returns must not turn the engine into a process that cannot be ended."""
    watched = Watched()
    watched.thread.start()
    watched.stepper.gate.clear()
    await watched.thread.ask(lambda: watched.stepper.work(1))
    with anyio.fail_after(5):
        await watched.thread.close(0.05)
    assert len(watched.lost) == 1
    watched.stepper.gate.set()


async def test_a_cancelled_asker_does_not_undo_what_it_asked_for() -> None:
    async with running() as watched:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await watched.thread.ask(lambda: watched.stepper.work(3))
        while watched.stepper.made < 3:
            await watched.thread.ask(lambda: None)
        assert watched.lost == []
