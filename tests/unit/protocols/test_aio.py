"""The two rules of cancellation, and that no ring of the doorbell is lost."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given
from hypothesis import strategies as st

from backends.sim.virtual_time import Deadlock, run_virtual
from protocols.aio import Doorbell, NoResult, bounded_shield, contained, owned
from protocols.errors import ForeignCancellation


async def _answer(value: int = 42) -> int:
    await checkpoint()
    return value


async def _fail() -> int:
    await checkpoint()
    raise ZeroDivisionError("user code")


async def _leak() -> int:
    """Let a cancellation out that nobody asked for, as a client whose own task was cancelled does."""
    await anyio.sleep(1)
    raise asyncio.CancelledError("a library's own")


async def _cancel_myself() -> int:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await anyio.sleep(1)
    return 0


async def _exit() -> int:
    await checkpoint()
    raise SystemExit(3)


async def _hang() -> int:
    await anyio.sleep_forever()
    return 0


class TestContained:
    async def test_a_result_comes_back(self) -> None:
        assert await contained(_answer, 7) == 7

    async def test_nothing_is_a_result_too(self) -> None:
        assert await contained(checkpoint) is None

    async def test_an_error_comes_back_unwrapped(self) -> None:
        with pytest.raises(ZeroDivisionError, match="user code"):
            await contained(_fail)

    @pytest.mark.parametrize("user_code", [_leak, _cancel_myself])
    async def test_a_cancellation_from_within_is_no_result(self, user_code: Callable[[], Awaitable[int]]) -> None:
        with pytest.raises(NoResult):
            await contained(user_code)

    async def test_a_system_exit_is_the_callers_to_judge(self) -> None:
        with pytest.raises(SystemExit):
            await contained(_exit)

    async def test_the_callers_cancellation_reaches_code_that_hangs(self) -> None:
        with anyio.move_on_after(5) as scope:
            await contained(_hang)
        assert scope.cancelled_caught
        assert anyio.current_time() == pytest.approx(5)

    async def test_a_native_cancel_of_the_host_passes_through(self) -> None:
        host = asyncio.ensure_future(contained(_hang))
        await anyio.sleep(1)
        host.cancel()
        with pytest.raises(asyncio.CancelledError):
            await host

    @pytest.mark.parametrize("user_code", [_leak, _cancel_myself, _fail])
    async def test_siblings_are_unaffected(self, user_code: Callable[[], Awaitable[int]]) -> None:
        """I18: a sandbox client's leaked cancellation killed the rollout producer."""
        log: list[str] = []

        async def sibling() -> None:
            await anyio.sleep(10)
            log.append("finished")

        async def host() -> None:
            try:
                await contained(user_code)
            except (NoResult, ZeroDivisionError):
                log.append("classed")

        async with anyio.create_task_group() as group:
            group.start_soon(sibling)
            group.start_soon(host)
        assert log == ["classed", "finished"]

    async def test_the_host_goes_on_after_user_code_that_cancelled_itself(self) -> None:
        with pytest.raises(NoResult):
            await contained(_cancel_myself)
        await anyio.sleep(1)
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0

    async def test_user_code_that_answers_a_cancellation_does_not_stop_it(self) -> None:
        async def stubborn() -> int:
            with suppress(asyncio.CancelledError):
                await anyio.sleep_forever()
            return 1

        with anyio.move_on_after(1) as scope:
            await contained(stubborn)
        assert scope.cancelled_caught


class TestOwned:
    async def test_a_result_and_an_error_pass(self) -> None:
        assert await owned("task", _answer) == 42
        with pytest.raises(ZeroDivisionError):
            await owned("task", _fail)

    @pytest.mark.parametrize("body", [_leak, _cancel_myself])
    async def test_a_cancellation_that_no_scope_asked_for_is_an_error(self, body: Callable[[], Awaitable[int]]) -> None:
        with pytest.raises(ForeignCancellation, match="stage train") as caught:
            await owned("stage train", body)
        assert caught.value.task == "stage train"
        assert isinstance(caught.value.__cause__, asyncio.CancelledError)

    async def test_a_scopes_cancellation_passes(self) -> None:
        with anyio.move_on_after(1) as scope:
            await owned("task", _hang)
        assert scope.cancelled_caught

    async def test_a_scopes_cancellation_passes_from_outside_of_the_group(self) -> None:
        with anyio.move_on_after(1) as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(owned, "one", _hang)
                group.start_soon(owned, "two", _hang)
        assert scope.cancelled_caught

    async def test_the_scopes_cancellation_wins_over_a_foreign_one(self) -> None:
        async def foreign_during_clean_up() -> None:
            with suppress(asyncio.CancelledError):
                await anyio.sleep_forever()
            raise asyncio.CancelledError("a library's own")

        with anyio.move_on_after(1) as scope:
            await owned("task", foreign_during_clean_up)
        assert scope.cancelled_caught

    async def test_a_group_fails_that_would_have_ended_as_if_all_had_finished(self) -> None:
        finished: list[str] = []

        async def sibling() -> None:
            await anyio.sleep(10)
            finished.append("sibling")

        async with anyio.create_task_group() as group:  # bare: the cancellation is silent
            group.start_soon(sibling)
            group.start_soon(_leak)
        assert finished == []
        with pytest.RaisesGroup(ForeignCancellation):
            async with anyio.create_task_group() as group:
                group.start_soon(sibling)
                group.start_soon(owned, "leaks", _leak)


class TestBoundedShield:
    async def test_the_block_goes_on_while_the_scope_is_cancelled(self) -> None:
        cut: list[bool] = []
        with anyio.CancelScope() as outer:
            outer.cancel()
            with bounded_shield(5) as shield:
                await anyio.sleep(3)
            cut.append(shield.cancelled_caught)
            await checkpoint()
            cut.append(True)
        assert cut == [False]
        assert outer.cancelled_caught
        assert anyio.current_time() == pytest.approx(3)

    async def test_the_deadline_cuts_a_dead_engine(self) -> None:
        """An unbounded shield over a dead engine makes a process that cannot be ended."""
        cut: list[bool] = []
        with anyio.CancelScope() as outer:
            outer.cancel()
            with bounded_shield(5) as shield:
                await anyio.sleep_forever()
            cut.append(shield.cancelled_caught)
        assert cut == [True]
        assert anyio.current_time() == pytest.approx(5)

    async def test_a_native_cancel_goes_through(self) -> None:
        """So what is done inside must be safe to repeat."""

        async def clean_up() -> None:
            with bounded_shield(5):
                await anyio.sleep(3)

        task = asyncio.ensure_future(clean_up())
        await anyio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


class TestDoorbell:
    @given(
        seed=st.integers(0, 2**32),
        pauses=st.lists(st.lists(st.sampled_from([0.0, 0.0, 1.0, 2.0]), max_size=6), min_size=1, max_size=3),
        waiters=st.integers(1, 3),
    )
    def test_no_ring_is_lost(self, seed: int, pauses: list[list[float]], waiters: int) -> None:
        """A lost ring is a deadlock: whoever waits for the last change waits for ever."""
        total = sum(map(len, pauses))

        async def main() -> int:
            bell, changes = Doorbell(), 0

            async def change(after: list[float]) -> None:
                nonlocal changes
                for pause in after:
                    await anyio.sleep(pause)
                    changes += 1
                    bell.ring()

            async def wait_for(count: int) -> None:
                while changes < count:
                    await bell.wait()

            async with anyio.create_task_group() as group:
                for after in pauses:
                    group.start_soon(change, after)
                for waiter in range(waiters):
                    group.start_soon(wait_for, max(0, total - waiter))
            return changes

        assert run_virtual(main, seed=seed) == total

    def test_a_ring_is_lost_when_something_is_awaited_between_check_and_wait(self) -> None:
        """The test above can fail, and the docstring's condition is needed."""

        async def main() -> None:
            bell = Doorbell()
            changed = False

            async def wait_carelessly() -> None:
                while not changed:
                    await checkpoint()
                    await bell.wait()

            async with anyio.create_task_group() as group:
                group.start_soon(wait_carelessly)
                await checkpoint()
                changed = True
                bell.ring()

        with pytest.raises(Deadlock, match="wait_carelessly"):
            run_virtual(main)

    async def test_a_cancelled_waiter_leaves_the_others_waiting(self) -> None:
        bell = Doorbell()
        woken: list[str] = []

        async def wait() -> None:
            await bell.wait()
            woken.append("other")

        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            with anyio.move_on_after(1) as scope:
                await bell.wait()
            assert scope.cancelled_caught
            bell.ring()
        assert woken == ["other"]
