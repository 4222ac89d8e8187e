"""The first signal lets a run clean up, the second ends the process."""

import signal
import subprocess
import sys
import textwrap

import anyio
import pytest
from anyio.lowlevel import checkpoint

from conductor.cli.signals import under_signals
from protocols.aio import bounded_shield
from protocols.errors import ForeignCancellation

pytestmark = pytest.mark.real_time


async def test_what_is_left_alone_returns_its_value() -> None:
    async def work() -> int:
        await checkpoint()
        return 3

    ending = await under_signals(work, print)
    assert (ending.value, ending.error, ending.stopped_by) == (3, None, None)


async def test_an_error_comes_out_as_it_was_raised() -> None:
    error = ValueError("no")

    async def work() -> int:
        await checkpoint()
        raise error

    ending = await under_signals(work, print)
    assert ending.error is error


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
async def test_the_first_signal_cancels_and_waits_for_the_end(signum: signal.Signals) -> None:
    said: list[str] = []
    cleaned: list[str] = []

    async def work() -> None:
        try:
            signal.raise_signal(signum)
            await anyio.sleep_forever()
        finally:
            with bounded_shield(5.0):
                await anyio.sleep(0.01)
                cleaned.append("all")

    ending = await under_signals(work, said.append)
    assert (ending.stopped_by, ending.error, cleaned) == (signum, None, ["all"])
    assert said == [f"{signum.name}: stopping; once more to stop at once"]


async def test_a_run_that_ends_all_the_same_keeps_its_result() -> None:
    async def work() -> int:
        signal.raise_signal(signal.SIGINT)
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            return 3

    ending = await under_signals(work, lambda _: None)
    assert (ending.value, ending.stopped_by) == (3, signal.SIGINT)


async def test_a_cancellation_that_nobody_asked_for_is_a_failure() -> None:
    """Otherwise a leaked CancelledError would look like a run that was stopped."""

    async def work() -> None:
        await checkpoint()
        raise anyio.get_cancelled_exc_class()

    ending = await under_signals(work, print)
    assert isinstance(ending.error, ForeignCancellation)


def test_the_second_signal_ends_the_process_and_its_workers_at_once() -> None:
    program = """
        import multiprocessing, signal, sys, time
        import anyio
        from conductor.cli.signals import under_signals
        from protocols.aio import bounded_shield

        async def work():
            child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
            child.start()
            print(child.pid, flush=True)
            signal.raise_signal(signal.SIGTERM)
            with bounded_shield(60.0):
                await anyio.sleep(0.05)
                signal.raise_signal(signal.SIGTERM)
                await anyio.sleep(600)

        anyio.run(under_signals, work, print)
        """
    # it returns once the pipe is closed at all of its ends, and the worker holds one of them
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)  # noqa: S603 - our own
    assert done.returncode == 143, done.stderr
