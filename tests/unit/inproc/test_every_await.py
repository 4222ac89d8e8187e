"""A hosted workload, disturbed at each of its awaits: whatever happens, nothing of it is left."""

import asyncio

import pytest

from backends.inproc.launcher import open_launcher
from backends.sim.payloads import ScriptedPayloads
from protocols.backend import WorkloadSpec
from protocols.errors import ConductorError, ForeignCancellation
from protocols.grading import GradeRequest
from protocols.messages import LeaseId, PayloadRef, WorkerId
from protocols.prompts import Prompt, TextPrompt
from protocols.sections import Section, Site
from tests.support import hosted
from tests.support.await_probe import Injection, Planted, enumerate_awaits

REQUEST = GradeRequest(
    lease_id=LeaseId("L0"),
    attempt=0,
    prompt=Prompt(position=0, content=TextPrompt(text="p")),
    payload=PayloadRef(owner="p.1/L0/0/", key="group"),
    samples=(1,),
)


def _spec(worker_id: str, **options: object) -> WorkloadSpec:
    return WorkloadSpec(
        worker_id=WorkerId(worker_id),
        section="reward",
        adapter=Section(kind=hosted.KIND, options={"name": worker_id, **options}),
        site=Site(job_dir="/"),
        reservation_id=worker_id,
    )


async def _program() -> str:
    async with open_launcher(ScriptedPayloads()) as launcher:
        await launcher.launch(_spec("reward/0"))
        await launcher.launch(_spec("reward/1"))
        await launcher.call(WorkerId("reward/0"), "grade", (REQUEST,))
        await launcher.kill(WorkerId("reward/0"))
        await launcher.call(WorkerId("reward/1"), "grade", (REQUEST,))
    return "done"


@pytest.mark.parametrize("injection", ["cancel_task", "cancel_main", "cancel_scope", "fail"])
def test_nothing_is_left_wherever_it_is_disturbed(injection: Injection) -> None:
    """W01, I75: launching, calling, killing and closing, each cut at each of its awaits."""
    hosted.OPEN.clear()
    places = 0
    for trial in enumerate_awaits(_program, injection):
        places += 1
        assert hosted.OPEN == [], trial.site
        error = trial.outcome.error
        if trial.outcome.value == "done" or trial.outcome.cancelled:
            continue
        leaves = _leaves(error)
        allowed = (Planted, asyncio.CancelledError, ForeignCancellation, ConductorError)
        assert leaves, trial.site
        assert all(isinstance(leaf, allowed) for leaf in leaves), (trial.site, leaves)
    assert places >= 15


def _leaves(error: BaseException | None) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for one in error.exceptions for leaf in _leaves(one)]
    return [] if error is None else [error]
