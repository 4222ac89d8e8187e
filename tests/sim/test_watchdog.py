"""A run that stands still is ended with a verdict that says who waits for what, at exactly the moment it should."""

import math

import anyio
import pytest
from anyio.lowlevel import checkpoint

from backends.ledgers.memory import MemoryLedger
from conductor import runtime
from conductor.config import Deadlines, RunConfig
from conductor.core.admission import Admission
from conductor.observe.observer import Unwatched
from conductor.past import rebuild
from conductor.result import RunResult
from protocols.errors import ConductorError, EngineBusy, PortFailed, Stalled
from protocols.inference import AbortReport, EngineStatus
from protocols.messages import WorkerId
from protocols.rollouts import RolloutLease
from tests.support.runs import open_backend_over, run_config, run_scripted, workloads_of
from tests.support.scripted.workloads import ScriptedWorkloads, scripted_workloads

STALL_S = 100.0
DEADLINES = Deadlines(stall=STALL_S)  # above none of the others: validation is passed by


async def run_unvalidated(cfg: RunConfig, scripted: ScriptedWorkloads, ledger: MemoryLedger | None = None) -> RunResult:
    async with open_backend_over(scripted) as backend:
        workloads = workloads_of(scripted, ledger)
        return await runtime.run(cfg, backend=backend, workloads=workloads, observer=Unwatched(), to_stderr=False)


def hangs_from(position: int) -> ScriptedWorkloads:
    return scripted_workloads(100, duration_s=lambda lease: math.inf if lease.prompt.position >= position else 1.0)


async def test_the_verdict_names_groups_calls_ages_engines_and_what_would_unblock() -> None:
    """I01, I04, I09, I10: a trainer that polls an empty buffer for 3.7 hours, and nobody can say why."""
    scripted, ledger = hangs_from(3), MemoryLedger()
    with pytest.raises(Stalled) as caught:
        await run_unvalidated(run_config(steps=5, deadlines=DEADLINES), scripted, ledger)
    lines = str(caught.value).splitlines()
    assert lines[0] == "nothing has moved for 100 s (deadlines.stall), at step 1 of 5:"
    assert lines[1:] == [
        "the trainer waits for a batch: 1 of 2 groups are graded",
        "L3 (attempt 0) is generating: RolloutExecutor.generate for 101.0 s of at most 600 s",
        "unblocked by: the end of RolloutExecutor.generate of L3, at the latest in 499 s",
    ]
    assert "engine engine/0 serves v1, with 0 live requests" in caught.value.__notes__
    assert scripted.executor.live == frozenset()
    assert rebuild(await ledger.replay()).accounts.balanced


async def test_it_barks_when_nothing_has_moved_for_exactly_as_long() -> None:
    scripted = hangs_from(3)
    with pytest.raises(Stalled):
        await run_unvalidated(run_config(steps=5, deadlines=DEADLINES), scripted)
    # one second a group and a step: L2 is graded at 3 s, and nothing moves after it
    assert anyio.current_time() == pytest.approx(3.0 + STALL_S)


async def test_a_run_that_moves_is_left_alone_however_slow_it_is() -> None:
    scripted = scripted_workloads(100, duration_s=lambda _: 0.9 * STALL_S, step_s=0.9 * STALL_S)
    result = await run_unvalidated(run_config(steps=4, deadlines=DEADLINES), scripted)
    assert result.steps == 4


async def test_an_admission_that_grants_nothing_is_found_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """I14, I15: a capacity that comes to nothing, and a run that waits for ever. No call is open: it is our error."""
    scripted = scripted_workloads(100)
    monkeypatch.setattr(Admission, "grants", lambda self, tally, *, accepted, running: int(accepted + running < 3))
    with pytest.raises(Stalled) as caught:
        await run_scripted(run_config(steps=5), scripted)
    assert str(caught.value).splitlines()[1:] == [
        "the trainer waits for a batch: 1 of 2 groups are graded",
        "admission grants no group",
        "unblocked by: nothing that is open: no call of a port is waited for",
    ]
    assert anyio.current_time() == pytest.approx(7200.0, abs=10.0)


async def test_what_fails_while_the_engines_are_asked_came_second() -> None:
    """ORACLES.md: the stall verdict beats other errors."""
    scripted = hangs_from(3)
    executor = scripted.executor
    generate = executor.generate

    async def fails_late(lease: RolloutLease) -> object:
        if lease.prompt.position >= 3:
            await anyio.sleep(1.0 + STALL_S + 2.0)
            raise PortFailed("it burns")
        return await generate(lease)

    async def slowly() -> dict[WorkerId, EngineStatus | None]:
        await anyio.sleep(5.0)
        return {}

    executor.generate = fails_late  # type: ignore[method-assign,assignment]
    scripted.inference.statuses = slowly  # type: ignore[method-assign]
    with pytest.raises(Stalled) as caught:
        await run_unvalidated(run_config(steps=5, deadlines=DEADLINES), scripted)
    assert any("it burns" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("answer", ["raises", "hangs", "silent"])
async def test_engines_that_say_nothing_do_not_hold_the_verdict_up(answer: str) -> None:
    scripted = hangs_from(3)

    async def statuses() -> dict[WorkerId, EngineStatus | None]:
        await checkpoint()
        if answer == "raises":
            raise ZeroDivisionError
        if answer == "hangs":
            await anyio.sleep_forever()
        return {WorkerId("engine/0"): None}

    scripted.inference.statuses = statuses  # type: ignore[method-assign]
    with pytest.raises(Stalled) as caught:
        await run_unvalidated(run_config(steps=5, deadlines=DEADLINES), scripted)
    assert anyio.current_time() == pytest.approx(3.0 + STALL_S + (10.0 if answer == "hangs" else 0.0))
    notes = getattr(caught.value, "__notes__", [])
    assert notes == (["engine engine/0 does not answer"] if answer == "silent" else [])


async def test_a_shutdown_is_not_a_stall() -> None:
    """What is stopped has deadlines of its own, and its error stands."""
    scripted = hangs_from(3)
    abort = scripted.executor.abort

    async def slowly(prefix: str) -> object:
        await anyio.sleep(9.0)
        return await abort(prefix)

    scripted.executor.abort = slowly  # type: ignore[method-assign,assignment]
    with anyio.move_on_after(3.0 + STALL_S - 1.0) as scope:
        await run_unvalidated(run_config(steps=5, deadlines=DEADLINES), scripted)
    assert scope.cancelled_caught
    assert anyio.current_time() == pytest.approx(3.0 + STALL_S + 8.0)


async def test_a_run_that_is_being_ended_is_not_called_stalled() -> None:
    """What is aborted on the way out takes its time; the error before it stands, without a second verdict beside it."""

    def failure(lease: RolloutLease) -> ConductorError | None:
        return {0: EngineBusy(engine="e", waiting=1), 1: PortFailed("it burns")}.get(lease.prompt.position)

    scripted = scripted_workloads(100, duration_s=lambda lease: 1.0 + lease.prompt.position, failure=failure)
    abort = scripted.executor.abort

    async def slowly(prefix: str) -> AbortReport:
        await anyio.sleep(9.0)
        return await abort(prefix)

    scripted.executor.abort = slowly  # type: ignore[method-assign]
    with pytest.raises(PortFailed, match="it burns") as caught:
        await run_unvalidated(run_config(steps=5, deadlines=Deadlines(stall=5.0)), scripted)
    assert not [note for note in getattr(caught.value, "__notes__", []) if "watchdog" in note]
