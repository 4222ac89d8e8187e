"""An observer that fails does the run no harm."""

import asyncio

import pytest
from anyio.lowlevel import checkpoint
from structlog import get_logger
from structlog.testing import capture_logs

from conductor.conductor import Conductor
from conductor.observe.guarded import Guarded
from conductor.result import Accounts
from protocols.errors import InvariantError
from protocols.tracking import StepRecord
from tests.support.runs import open_backend_over, run_config, workloads_of
from tests.support.scripted.workloads import scripted_workloads

RECORD = StepRecord(step=1, metrics={})


class Broken:
    """Raises whenever it is told something."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.told: list[str] = []

    def phase(self, name: str) -> None:
        """Fail."""
        self.told.append(name)
        raise self.error

    def stepped(self, record: StepRecord, accounts: Accounts) -> None:
        """Fail."""
        self.told.append(f"step {record.step}")
        raise self.error


ERRORS = [ValueError("no disk"), SystemExit(3), asyncio.CancelledError(), InvariantError("not ours")]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_each_failure_is_counted_and_the_first_one_logged(error: BaseException) -> None:
    await checkpoint()
    with capture_logs() as logs:
        observer = Guarded(Broken(error), get_logger())
        for _ in range(3):
            observer.stepped(RECORD, Accounts())
        observer.phase("saving")
        observer.conclude()
    assert [entry["event"] for entry in logs] == ["observer.failed", "observer.failed", "observer.failures"]
    assert logs[0]["exc_info"] is error
    assert (logs[-1]["stepped"], logs[-1]["phase"]) == (3, 1)


def test_one_that_never_fails_is_not_mentioned() -> None:
    with capture_logs() as logs:
        Guarded(_Quiet(), get_logger()).conclude()
    assert logs == []


async def test_an_interrupt_passes() -> None:
    """Ctrl-C may come while an observer runs, and is no failure of its."""
    await checkpoint()
    with pytest.raises(KeyboardInterrupt):
        Guarded(Broken(KeyboardInterrupt()), get_logger()).phase("saving")


class _Quiet:
    def phase(self, name: str) -> None:
        """Do nothing."""

    def stepped(self, record: StepRecord, accounts: Accounts) -> None:
        """Do nothing."""


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_a_run_whose_observer_always_fails_ends_as_any_other(error: BaseException) -> None:
    """Issue E: a raising callback never skips a release and never changes the verdict."""
    scripted, broken = scripted_workloads(100), Broken(error)
    async with open_backend_over(scripted) as backend:
        result = await Conductor.run(
            run_config(steps=3), backend=backend, workloads=workloads_of(scripted), observer=broken
        )
    assert result.steps == 3
    assert {"starting", "training", "finishing", "step 3"} <= set(broken.told), "it goes on being told"
    assert await scripted.payloads.owners() == frozenset(), "and everything is given back"


async def test_the_error_that_ends_a_run_is_its_own() -> None:
    scripted, broken = scripted_workloads(100), Broken(ValueError("no disk"))
    scripted.trainer.train_step = _fail
    async with open_backend_over(scripted) as backend:
        with pytest.raises(InvariantError, match="the trainer is wrong"):
            await Conductor.run(run_config(steps=3), backend=backend, workloads=workloads_of(scripted), observer=broken)
    assert "stopping" in broken.told
    assert await scripted.payloads.owners() == frozenset()


async def _fail(_batch: object) -> object:
    await asyncio.sleep(0)
    raise InvariantError("the trainer is wrong")
