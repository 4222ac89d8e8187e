"""What is special about the backend of one process."""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import cast

import anyio
import msgspec
import pytest

from backends import inproc
from backends._hosting import PORTS
from backends.inproc.payloads import InprocPayloads
from protocols.adapters import ROOMS, Host, known_kinds
from protocols.backend import Backend, Ranks, ReserveRequest, Resources, WorkloadSpec
from protocols.errors import ForeignCancellation, Infeasible
from protocols.grading import Grade, GradeReport, GradeRequest
from protocols.messages import LeaseId, Message, PayloadRef, WorkerId
from protocols.prompts import Prompt, TextPrompt
from protocols.rollouts import GroupPayload
from protocols.sections import Section, Site
from tests.support import hosted
from tests.support.hosted import running
from tests.support.scripted.inference import ScriptedInference

REWARD = WorkerId("reward/0")
REF = PayloadRef(owner="p.1/L0/0/", key="group")
GROUP = GroupPayload(prompt_ids=(1,), prompt_text="1", temperature=1.0, samples=())
REQUEST = GradeRequest(
    lease_id=LeaseId("L0"),
    attempt=0,
    prompt=Prompt(position=0, content=TextPrompt(text="p")),
    payload=REF,
    samples=(1,),
)


def spec(**options: object) -> WorkloadSpec:
    return WorkloadSpec(
        worker_id=REWARD,
        section="reward",
        adapter=Section(kind=hosted.KIND, options=dict(options)),
        site=Site(job_dir="/"),
        reservation_id="r",
    )


async def test_a_payload_is_the_very_object_that_was_put() -> None:
    """Weights go from trainer to engine without a copy."""
    payloads = InprocPayloads()
    await payloads.put(REF, GROUP)
    assert await payloads.get(REF) is GROUP
    arrays = {"weight": memoryview(b"bulk")}
    await payloads.put(REF, arrays)
    assert await payloads.get(REF) is arrays, "bulk is never copied in one process"


async def test_encoded_messages_are_equal_and_not_the_same() -> None:
    payloads = InprocPayloads(encode_messages=True)
    await payloads.put(REF, GROUP)
    assert await payloads.get(REF) == GROUP
    assert await payloads.get(REF) is not GROUP


class _Smuggler(Message, frozen=True, kw_only=True):
    cargo: object


async def test_what_hides_in_a_message_is_found_when_messages_are_encoded() -> None:
    """A tensor in a message works in one process and nowhere else."""
    smuggler = _Smuggler(cargo=memoryview)
    await InprocPayloads().put(REF, smuggler)
    with pytest.raises(TypeError):
        await InprocPayloads(encode_messages=True).put(REF, smuggler)


async def test_this_machine_is_one_node() -> None:
    async with inproc.open(inproc.Config(), Site(job_dir="/")) as backend:
        inventory = await backend.placement.inventory()
        (node,) = inventory.nodes
        assert inventory.controller == node.name
        assert node.cpus == tuple(sorted(os.sched_getaffinity(0))), "the operator's mask"
        assert node.total == node.free
        assert node.total.cpus == len(node.cpus)
        assert 0 < node.total.memory_gib < 1e6
        with pytest.raises(Infeasible) as refused:
            await backend.placement.reserve(
                ReserveRequest(reservation_id="r", resources=Resources(cpus=len(node.cpus) + 1))
            )
        assert refused.value.available == len(node.cpus)
    assert not inproc.check(inproc.Config(), Site(job_dir="/"))


HANDED: list[Host] = []


@asynccontextmanager
async def _keep(_cfg: object, host: Host) -> AsyncGenerator[object]:
    HANDED.append(host)
    yield object()


KEEPER = SimpleNamespace(Config=Message, check=lambda _cfg, _site: (), open=_keep)


@pytest.mark.parametrize("encode", [False, True])
async def test_a_workload_is_told_its_place_in_the_plan(encode: bool) -> None:
    """W16: whoever computes in ranks must not work its own out from its name."""
    HANDED.clear()
    ranks = Ranks(world=3, role=1, node=0, local=3)
    placed = msgspec.structs.replace(
        spec(), adapter=Section(kind=f"{__name__}:KEEPER"), devices=(2, 3), ranks=ranks, cpus=(1,)
    )
    async with inproc.open(inproc.Config(encode_messages=encode), Site(job_dir="/")) as backend:
        await backend.launcher.launch(placed)
    (host,) = HANDED
    assert (host.devices, host.ranks) == ((2, 3), ranks)


@pytest.mark.parametrize("encode", [False, True])
async def test_workloads_of_one_backend_share_its_payloads(encode: bool) -> None:
    async with inproc.open(inproc.Config(encode_messages=encode), Site(job_dir="/")) as backend:
        await backend.launcher.launch(spec())
        await backend.payloads.put(REF, GROUP)
        report = await backend.launcher.call(REWARD, "grade", (REQUEST,))
        assert report == GradeReport(lease_id=LeaseId("L0"), attempt=0, grades=(Grade(reward=1.0),))


async def test_a_bug_of_a_workload_surfaces_unchanged() -> None:
    """Other backends can only tell of it; here its own traceback reaches the caller."""
    async with inproc.open(inproc.Config(), Site(job_dir="/")) as backend:
        await backend.launcher.launch(spec(call="bug"))
        with pytest.raises(hosted.Bug):
            await backend.launcher.call(REWARD, "grade", (REQUEST,))
        assert await running(backend.launcher) == {REWARD: True}


async def _inference_of(backend: Backend) -> object:
    worker = cast("inproc.launcher.InprocLauncher", backend.launcher)._workers[REWARD]
    return worker._port.host.inference


async def test_what_is_served_reaches_later_workloads() -> None:
    async with inproc.open(inproc.Config(), Site(job_dir="/")) as backend:
        await backend.launcher.launch(spec())
        assert await _inference_of(backend) is None
        await backend.launcher.kill(REWARD)
        inference = ScriptedInference()
        await backend.launcher.serve("engines", inference)
        await backend.launcher.launch(spec())
        assert await _inference_of(backend) is inference


async def test_a_workload_is_opened_and_closed_in_one_task() -> None:
    """anyio: a cancel scope must be left in the task that entered it; the launcher's callers are many."""
    async with inproc.open(inproc.Config(), Site(job_dir="/")) as backend:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(backend.launcher.launch, spec())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(backend.launcher.kill, REWARD)
        assert hosted.OPEN == []


async def test_a_native_cancellation_of_a_worker_is_an_error() -> None:
    """I18: foreign code cancels a task, and everybody thinks that the work was finished."""
    async with inproc.open(inproc.Config(), Site(job_dir="/")) as backend:
        with pytest.raises(ForeignCancellation, match=REWARD):
            await backend.launcher.launch(spec(opening="leaks"))


def test_every_hosted_section_has_a_room() -> None:
    assert PORTS.keys() <= ROOMS.keys()


def test_the_kinds_that_ship_are_the_files() -> None:
    assert "inproc" in known_kinds("backend")
    assert {"function", "jsonl"} <= set(known_kinds("prompts"))
    assert "function" in known_kinds("reward")
    assert known_kinds("episode") == ("single_turn",)
    assert known_kinds("ledger") == ("memory", "sqlite")
    assert known_kinds("tracker") == ("jsonl", "mlflow", "prometheus", "tensorboard", "wandb")


async def test_a_cancelled_run_finds_its_workers_alive() -> None:
    """DESIGN.md, abort: what is cancelled aborts its leased work under a shield, and asks the workers to do it."""
    answered: list[GradeReport] = []
    with anyio.CancelScope() as scope:
        async with inproc.open(inproc.Config(), Site(job_dir="/")) as backend:
            await backend.launcher.launch(spec())
            try:
                scope.cancel()
                await anyio.sleep_forever()
            finally:
                with anyio.move_on_after(5, shield=True):
                    await anyio.sleep(1)
                    answered.append(await backend.launcher.call(REWARD, "grade", (REQUEST,)))
    assert scope.cancelled_caught
    assert len(answered) == 1
    assert hosted.OPEN == []
