"""Calls to a group over every launcher: to all of it, to one, to the first, and scattered."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from backends.sim.faults import Faults
from backends.sim.launcher import SimLauncher
from conductor.fleet.group import WorkerGroup, open_group
from protocols.backend import LauncherPort, WorkloadSpec
from protocols.errors import Infeasible, InvariantError, WorkerLost
from protocols.faults import FaultPlan
from protocols.grading import GradeRequest
from protocols.inference import InferenceControllerPort
from protocols.messages import LeaseId, PayloadRef, WorkerId
from protocols.prompts import Prompt, TextPrompt
from protocols.sections import Section, Site
from protocols.simulation import Observed
from tests.support import hosted
from tests.support.launchers import INPROC, PROCESSES, RAY, OpenLauncher, chosen
from tests.support.vertices import vertices

SITE = Site(job_dir="/")
FIRST, SECOND = WorkerId("reward/0"), WorkerId("reward/1")


@asynccontextmanager
async def _sim() -> AsyncGenerator[LauncherPort]:
    def make(spec: WorkloadSpec, inference: InferenceControllerPort | None) -> Any:
        del inference
        return hosted.HostedGrader(msgspec.convert(spec.adapter.options, hosted.HostedConfig), None)  # type: ignore[arg-type]

    yield SimLauncher(make, Faults(FaultPlan(), Observed()), [])


@pytest.fixture(params=[INPROC, pytest.param(_sim, id="sim"), PROCESSES, RAY])
def open_one(request: pytest.FixtureRequest) -> OpenLauncher:
    return chosen(request)


@asynccontextmanager
async def open_graders(open_one: OpenLauncher, *second: str) -> AsyncGenerator[tuple[LauncherPort, WorkerGroup]]:
    """Open two graders; what the second does when it is called may be told."""
    adapters = [Section(kind=hosted.KIND), Section(kind=hosted.KIND, options={"call": second[0]} if second else {})]
    members = vertices("reward", "reward", adapters)
    # the second of the plan is the first of the ranks, as where instances are spread over nodes
    ranks = [msgspec.structs.replace(member.ranks, role=1 - member.ranks.role) for member in members]
    members = tuple(msgspec.structs.replace(member, ranks=rank) for member, rank in zip(members, ranks, strict=True))
    async with open_one() as launcher, open_group(members, launcher, SITE, start_s=60.0, stop_s=10.0) as group:
        yield launcher, group


def request_for(lease: str, *samples: int) -> GradeRequest:
    return GradeRequest(
        lease_id=LeaseId(lease),
        attempt=1,
        prompt=Prompt(position=0, content=TextPrompt(text="p")),
        payload=PayloadRef(owner=f"p.1/{lease}/1/", key="group"),
        samples=samples,
    )


async def test_all_are_called_and_answer_in_the_order_of_their_ranks(open_one: OpenLauncher) -> None:
    """W16: answers were stored by rank and read by position."""
    async with open_graders(open_one) as (_, group):
        said = await group.calls.all("grade", request_for("L0", 0))
        assert list(said) == [SECOND, FIRST] == list(group.calls.members)
        assert {report.lease_id for report in said.values()} == {"L0"}


async def test_one_is_called_and_the_first_is_that_of_rank_0(open_one: OpenLauncher) -> None:
    async with open_graders(open_one, "refused") as (_, group):
        assert (await group.calls.one(FIRST, "grade", request_for("L1"))).lease_id == "L1"
        with pytest.raises(Infeasible):
            await group.calls.first("grade", request_for("L1"))


async def test_each_gets_its_part_by_its_rank(open_one: OpenLauncher) -> None:
    async with open_graders(open_one) as (_, group):
        said = await group.calls.scattered("grade", [request_for("L0"), request_for("L1")])
        assert {member: report.lease_id for member, report in said.items()} == {SECOND: "L0", FIRST: "L1"}


async def test_parts_that_do_not_fit_are_refused_before_anybody_is_called(open_one: OpenLauncher) -> None:
    """W16: with the numbers, and nobody has half of a call."""
    async with open_graders(open_one, "hangs") as (_, group):
        with pytest.raises(InvariantError, match="in 1 parts over 2 workers"):
            await group.calls.scattered("grade", [request_for("L0")])
        with pytest.raises(InvariantError, match="reward/7 is none of reward/1, reward/0"):
            await group.calls.one(WorkerId("reward/7"), "grade", request_for("L0"))


@pytest.mark.parametrize("lost", [True, False])
async def test_the_first_failure_ends_the_call_and_names_the_worker(open_one: OpenLauncher, lost: bool) -> None:
    """W14: one worker failed while the others hung."""
    async with open_graders(open_one, "hangs" if lost else "refused") as (launcher, group):
        if lost:
            await launcher.kill(FIRST)
        with pytest.raises(WorkerLost if lost else Infeasible) as caught:
            await group.calls.all("grade", request_for("L0", 0))
        assert caught.value.__notes__[-1] == f"grade at {FIRST if lost else SECOND}"
