"""Virtual time: what jumps, what is reported, what is refused.

Tests of a verdict are synchronous: it is the loop that raises it.
"""

import asyncio
import math
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from itertools import count, permutations

import anyio
import anyio.lowlevel
import pytest
from anyio._backends import _asyncio as _anyio_asyncio
from anyio.lowlevel import checkpoint
from anyio.to_thread import run_sync

from backends.sim.virtual_time import (
    Deadlock,
    Endless,
    Livelock,
    Refused,
    Stuck,
    VirtualTimeLoop,
    run_virtual,
)


async def test_hours_pass_at_once() -> None:
    began = time.monotonic()
    await anyio.sleep(4 * 3600)
    assert anyio.current_time() == pytest.approx(14_400)
    assert time.monotonic() - began < 5


async def test_timers_come_in_the_order_of_their_times() -> None:
    woke: list[float] = []

    async def sleeper(seconds: float) -> None:
        await anyio.sleep(seconds)
        woke.append(anyio.current_time())

    async with anyio.create_task_group() as group:
        for seconds in (3.0, 0.5, 2.0, 0.5, 0.0):
            group.start_soon(sleeper, seconds)
    assert woke == [0.0, 0.5, 0.5, 2.0, 3.0]


async def test_a_deadline_cuts_at_its_own_time() -> None:
    with anyio.move_on_after(7.25) as scope:
        await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert anyio.current_time() == pytest.approx(7.25)


def test_a_timer_is_due_however_late_it_is() -> None:
    """CPython 116342: past 2**24 s the clock's steps are coarser than the default resolution, and the loop spun."""

    async def main() -> None:
        await anyio.sleep(2.0**26)
        for _ in range(100):
            await anyio.sleep(0.1)

    run_virtual(main, horizon_s=math.inf)


def test_a_deadlock_names_every_task_and_where_it_waits() -> None:
    """I04: a trainer waited 3.7 h for an empty buffer, and nobody could say for what."""

    async def trainer() -> None:
        await anyio.Event().wait()

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(trainer, name="stage train")
            await anyio.sleep(3)

    with pytest.raises(Deadlock) as caught:
        run_virtual(main)
    assert caught.value.at_s == pytest.approx(3)
    [report] = [line for line in caught.value.waiting if line.startswith("stage train at ")]
    assert "test_virtual_time.py:" in report
    assert report.endswith("trainer")


def test_after_a_deadlock_the_program_is_still_cancelled_and_cleans_up() -> None:
    cleaned: list[float] = []

    async def main() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.move_on_after(5, shield=True):
                await anyio.sleep(2)
            cleaned.append(anyio.current_time())

    with pytest.raises(Deadlock):
        run_virtual(main)
    assert cleaned == [2.0]


def test_a_livelock_is_reported() -> None:
    """W02: a wait spun the loop, and no abort ever ran."""

    async def main() -> None:
        for _ in count():
            await checkpoint()

    with pytest.raises(Livelock, match=r"at test_virtual_time\.py:"):
        run_virtual(main)


def test_a_condition_under_level_cancellation_is_a_livelock() -> None:
    """``asyncio.Condition`` takes its lock again however often it is cancelled; anyio cancels without end."""

    async def main() -> None:
        condition = asyncio.Condition()

        async def holder() -> None:
            async with condition:
                condition.notify()
                with anyio.CancelScope(shield=True):
                    await anyio.Event().wait()

        async def waiter() -> None:
            async with condition:
                await condition.wait()

        async with anyio.create_task_group() as group:
            group.start_soon(waiter)
            await anyio.sleep(1)
            group.start_soon(holder)
            await anyio.sleep(1)
            group.cancel_scope.cancel()

    with pytest.raises(Livelock, match="waiter"):
        run_virtual(main)


def test_a_periodic_task_does_not_hide_a_deadlock() -> None:
    async def beat() -> None:
        for _ in count():
            await anyio.sleep(60)

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(beat)
            await anyio.Event().wait()

    with pytest.raises(Endless, match="main") as caught:
        run_virtual(main, horizon_s=3600)
    assert caught.value.at_s == pytest.approx(3660)


def test_no_handler_of_the_program_swallows_the_verdict() -> None:
    async def main() -> None:
        while True:
            try:
                await anyio.Event().wait()
            except Exception:  # noqa: BLE001 - the worst of handlers
                await checkpoint()

    with pytest.raises(Deadlock):
        run_virtual(main)


async def _open_socket() -> None:
    mine, peer = socket.socketpair()
    with mine, peer:
        mine.setblocking(False)
        await asyncio.get_running_loop().sock_recv(mine, 1)


async def _start_process() -> None:
    await anyio.run_process(["true"])


async def _use_own_thread() -> None:
    called = asyncio.get_running_loop().create_future()
    loop = asyncio.get_running_loop()
    thread = threading.Thread(target=lambda: loop.call_soon_threadsafe(called.set_result, None), name="engine")
    thread.start()
    thread.join()
    await called
    await anyio.sleep(1)


@pytest.mark.parametrize(
    ("program", "why"),
    [(_open_socket, "socket"), (_start_process, "process"), (_use_own_thread, "thread engine called back")],
)
def test_what_does_not_keep_virtual_time_ends_the_run(program: Callable[[], Awaitable[None]], why: str) -> None:
    async def swallow() -> None:
        try:
            await program()
        except Exception:  # noqa: BLE001 - the verdict must come out all the same
            await anyio.sleep(1)

    with pytest.raises(Refused, match=f"{why}.*real_time"):
        run_virtual(swallow)


def test_a_deadlock_says_which_threads_run() -> None:
    """A test that should have been marked ``real_time`` says so itself."""
    stop = threading.Event()

    async def main() -> None:
        threading.Thread(target=stop.wait, name="ledger").start()
        await anyio.sleep_forever()

    try:
        with pytest.raises(Deadlock, match=r"ledger.*real_time"):
            run_virtual(main)
    finally:
        stop.set()


async def test_functions_for_threads_run_in_place() -> None:
    here = threading.get_ident()
    assert await run_sync(threading.get_ident) == here
    assert await asyncio.to_thread(threading.get_ident) == here
    with pytest.raises(ZeroDivisionError):
        await run_sync(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        await asyncio.to_thread(lambda: 1 // 0)
    assert anyio.current_time() == 0


def _order_of_three(seed: int | None) -> tuple[int, ...]:
    order: list[int] = []

    async def task(number: int) -> None:
        await anyio.sleep(1)
        order.append(number)

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for number in range(3):
                group.start_soon(task, number)

    run_virtual(main, seed=seed)
    return tuple(order)


def test_seeds_search_schedules_and_repeat_them() -> None:
    assert _order_of_three(None) == (0, 1, 2)
    found = {seed: _order_of_three(seed) for seed in range(60)}
    assert set(found.values()) == set(permutations(range(3)))
    assert {seed: _order_of_three(seed) for seed in range(10)} == dict(list(found.items())[:10])


def test_a_shuffled_program_still_deadlocks_and_still_ends() -> None:
    with pytest.raises(Stuck):
        run_virtual(anyio.sleep_forever, seed=7)


def _modules_of_what_is_changed() -> set[str]:
    scope, backend = _anyio_asyncio.CancelScope, _anyio_asyncio.AsyncIOBackend
    return {scope.__init__.__module__, backend.run_sync_in_worker_thread.__module__}


def test_anyio_is_as_it_was_when_no_virtual_loop_runs() -> None:
    """Other loops of the process must not notice: a real run in the same suite needs real threads."""

    async def look() -> set[str]:
        await checkpoint()
        return _modules_of_what_is_changed()

    assert _modules_of_what_is_changed() == {"anyio._backends._asyncio"}
    assert run_virtual(look) == {"backends.sim.repeatable"}
    assert _modules_of_what_is_changed() == {"anyio._backends._asyncio"}

    async def main() -> int:
        return await run_sync(threading.get_ident)

    assert anyio.run(main) != threading.get_ident()


def test_a_loop_in_another_thread_keeps_its_own_ways() -> None:
    """anyio is changed for the whole process while a virtual loop runs; a real loop beside it is left alone."""
    idents: list[tuple[int, int]] = []

    async def real() -> None:
        idents.append((threading.get_ident(), await run_sync(threading.get_ident)))

    async def virtual() -> None:
        await checkpoint()
        thread = threading.Thread(target=anyio.run, args=(real,))
        thread.start()
        thread.join()

    run_virtual(virtual)
    [(loop_thread, worker)] = idents
    assert loop_thread != worker


def test_one_loop_may_run_several_programs() -> None:
    loop = VirtualTimeLoop()
    try:
        loop.run_until_complete(anyio.sleep(2))
        with pytest.raises(Deadlock):
            loop.run_until_complete(loop.create_future())
        loop.run_until_complete(anyio.sleep(2))
        assert loop.time() == pytest.approx(4)
    finally:
        loop.close()
