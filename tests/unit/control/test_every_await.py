"""The socket and its clients, disturbed at each of their awaits: the run beside them never notices."""

import asyncio
from pathlib import Path

import anyio
import pytest
import structlog

from conductor.control.messages import Reply, Request
from conductor.control.place import SOCKET
from conductor.control.server import open_control
from tests.support.await_probe import AwaitProbe, Injection, Planted, _act, anywhere, may_fail
from tests.support.trials import Outcome, run_program

pytestmark = pytest.mark.real_time


async def answer(request: Request) -> Reply:
    await anyio.sleep(0.0)
    return Reply(done=request.command)


async def ask(folder: Path) -> None:
    """Connect and ask, as long as somebody listens; what becomes of a client is not looked at."""
    with anyio.move_on_after(0.2):
        while True:
            try:
                async with await anyio.connect_unix(folder / SOCKET) as stream:
                    await stream.send(b'{"command": "status"}\n')
                    await stream.receive()
                    return
            except (OSError, anyio.EndOfStream, anyio.BrokenResourceError):
                await anyio.sleep(0.001)


def disturbed(folder: Path, injection: Injection, at: int | None) -> tuple[list[str], Outcome[str]]:
    """Serve one client while the run's own task sleeps; returns the awaits of the control's tasks."""
    counts = may_fail if injection == "fail" else anywhere

    def of_the_control(coroutine: object) -> bool:
        task = asyncio.current_task()
        return task is not None and task.get_name().startswith("control") and counts(coroutine)

    probe = AwaitProbe(at, counts=of_the_control)

    def make_loop() -> asyncio.SelectorEventLoop:
        loop = asyncio.SelectorEventLoop()
        loop.set_task_factory(probe)
        return loop

    async def program(scope: anyio.CancelScope) -> str:
        log = structlog.wrap_logger(structlog.testing.CapturingLogger())
        with probe.acting(_act(injection, scope)):
            async with open_control(str(folder), answer, log):
                await ask(folder)
            return "ran on"

    return probe.sites, run_program(program, make_loop)  # type: ignore[arg-type]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("injection", ["fail", "cancel_task"])
def test_what_goes_wrong_in_it_is_no_matter_of_the_runs(tmp_path: Path, injection: Injection) -> None:
    sites, outcome = disturbed(tmp_path, injection, None)
    assert (outcome.value, outcome.left) == ("ran on", ())
    assert len(sites) > 5, "the control has lost its awaits"
    for at in range(1, len(sites) + 1):
        reached, outcome = disturbed(tmp_path, injection, at)
        place = f"{at}: {reached[at - 1] if len(reached) >= at else 'not reached'}: {outcome}"
        assert not isinstance(outcome.error, Planted), place
        assert (outcome.value, outcome.left) == ("ran on", ()), place
        (tmp_path / SOCKET).unlink(missing_ok=True)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("injection", ["cancel_scope", "cancel_main"])
def test_a_run_that_is_cancelled_takes_it_along(tmp_path: Path, injection: Injection) -> None:
    sites, _ = disturbed(tmp_path, injection, None)
    for at in range(1, len(sites) + 1):
        reached, outcome = disturbed(tmp_path, injection, at)
        place = f"{at}: {reached[at - 1] if len(reached) >= at else 'not reached'}: {outcome}"
        if outcome.value is None:
            cancelled = outcome.cancelled or isinstance(outcome.error, asyncio.CancelledError)
            assert cancelled, place
        assert not outcome.left, place
        assert not (tmp_path / SOCKET).exists(), place
