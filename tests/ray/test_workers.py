"""Workers in actors: what ends them, what they find, and that nothing of them is left."""

import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from anyio.streams.text import TextReceiveStream

pytest.importorskip("ray")

import ray

from backends import ray as backend
from backends.ray.payloads import Held, RayPayloads, put_alone
from benchmarks._ray_cluster import RayCluster
from protocols.backend import Backend, ReserveRequest, Resources, WorkloadSpec
from protocols.errors import Infeasible, PortFailed, UserError, WorkerLost
from protocols.messages import PayloadRef, WorkerId
from protocols.sections import Section, Site
from tests.support.hosted import running
from tests.support.leftovers import carrying
from tests.support.pids import Watched
from tests.support.probe import KIND, REF, asking, told

pytestmark = [pytest.mark.cluster, pytest.mark.real_time, pytest.mark.timeout(240)]

PROBE = WorkerId("reward/0")
ROOT = Path(__file__).parents[2]


def spec(run_dir: Path | None = None, **environment: str) -> WorkloadSpec:
    return WorkloadSpec(
        worker_id=PROBE,
        section="reward",
        adapter=Section(kind=KIND),
        site=Site(job_dir="/", run_dir=None if run_dir is None else str(run_dir)),
        reservation_id=PROBE,
        environment=environment,
    )


@asynccontextmanager
async def opened(cluster: RayCluster, **options: object) -> AsyncGenerator[Backend]:
    cfg = backend.Config(address=cluster.address, **options)  # pyright: ignore[reportArgumentType]
    async with backend.open(cfg, Site(job_dir="/")) as made:
        yield made


async def ask(made: Backend, what: str, argument: str = "") -> str:
    return told(await made.launcher.call(PROBE, "grade", (asking(what, argument),)))


async def test_a_kill_from_outside_is_told_at_once_and_what_it_started_ends(ray_cluster: RayCluster) -> None:
    """I03, I04: the caller learns it when it happens; I75: strays hold the accelerator for whoever comes next."""
    async with opened(ray_cluster) as made:
        await made.launcher.launch(spec(PROBE="set"))
        assert (await ask(made, "at_import")).startswith("set "), "the environment is there before the adapter is"
        strays = [int(pid) for pid in (await ask(made, "spawn", "sleep 600")).split()]
        pid = int(await ask(made, "pid"))
        assert (await made.launcher.poll())[PROBE].pid == pid

        async def call() -> None:
            with pytest.raises(WorkerLost, match="process has died"):
                await ask(made, "wait")

        with Watched([pid, *strays]) as watched, anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call)
                tasks.start_soon(call)
                await ask(made, "echo")
                os.kill(pid, signal.SIGKILL)
            assert watched.left(0.0) == set()
        assert await running(made.launcher) == {PROBE: False}


async def test_a_worker_that_stands_still_is_found_by_its_heartbeat(ray_cluster: RayCluster) -> None:
    """Ray sees a connection that is open, and waits for ever."""
    async with opened(ray_cluster, heartbeat_s=3.0) as made:
        await made.launcher.launch(spec())
        pid = int(await ask(made, "pid"))
        with Watched([pid]) as watched, anyio.fail_after(60):
            os.kill(pid, signal.SIGSTOP)
            with pytest.raises(WorkerLost, match=r"did not answer for 3 s"):
                await ask(made, "wait")
            assert watched.left(0.0) == set()


async def test_a_call_that_nobody_waits_for_is_over_when_its_caller_goes_on(
    ray_cluster: RayCluster, tmp_path: Path
) -> None:
    """Ray lets the actor's task run when its caller is cancelled: the abort is a message of its own."""
    async with opened(ray_cluster) as made:
        await made.launcher.launch(spec(tmp_path))
        with anyio.move_on_after(0.5) as scope:
            await ask(made, "wait")
        assert scope.cancelled_caught
        assert await anyio.Path(tmp_path / "logs" / "reward-0.log").read_text() == "the call has ended\n"
        assert await ask(made, "echo", "it") == "it", "the worker is as before"


async def test_calls_of_one_tick_go_together_and_each_is_what_it_was_alone(
    ray_cluster: RayCluster, tmp_path: Path
) -> None:
    """To Ray, a message costs as much as thirty in one. They end, fail and are withdrawn one by one all the same."""
    heard: dict[str, str] = {}

    async def call(made: Backend, what: str, argument: str) -> None:
        heard[argument] = await ask(made, what, argument)

    async with opened(ray_cluster) as made:
        await made.launcher.launch(spec(tmp_path))
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                for number in range(30):
                    tasks.start_soon(call, made, "echo", str(number))
            assert heard == {str(number): str(number) for number in range(30)}
            heard.clear()
            async with anyio.create_task_group() as tasks:
                for number in range(3):
                    tasks.start_soon(call, made, "wait", str(number))
                tasks.start_soon(call, made, "echo", "it")
                while not heard:  # noqa: ASYNC110 - one that is quick does not wait for those that came with it
                    await anyio.sleep(0.01)
                tasks.cancel_scope.cancel()
            log = await anyio.Path(tmp_path / "logs" / "reward-0.log").read_text()
            assert log == "the call has ended\n" * 3, "each is over when its caller goes on"

            async def lost() -> None:
                with pytest.raises(WorkerLost, match="process has died"):
                    await ask(made, "wait")

            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(lost)
                os.kill(int(await ask(made, "pid")), signal.SIGKILL)


async def test_what_another_node_put_is_compared_with_the_sums_that_its_maker_is_asked_for(
    ray_cluster: RayCluster,
) -> None:
    """Sums took half as long as the copy, of bytes that mostly nobody reads elsewhere."""
    node = ray_cluster.add_node(num_cpus=7)
    async with opened(ray_cluster) as made:
        (name,) = [one.name for one in (await made.placement.inventory()).nodes if one.total.cpus == 7]
        await made.placement.reserve(ReserveRequest(reservation_id=PROBE, resources=Resources(cpus=1), node=name))
        await made.launcher.launch(spec())
        await ask(made, "put", "3000000")
        store = made.payloads._directory  # pyright: ignore  # noqa: PGH003
        (held,) = await store.find.remote([REF])
        assert held.sums == (None,), "who puts does not wait for what nobody may ask"
        found: list[object] = []

        async def get() -> None:
            found.append(await made.payloads.get(REF))

        async with anyio.create_task_group() as tasks:
            for _ in range(12):
                tasks.start_soon(get)
        assert found == [{"x": b"x" * 3_000_000}] * 12
        await store.change.remote([(REF, replace(held, sums=((1,),)))])
        with pytest.raises(WorkerLost, match=r"'group' of 'p.1/L0/0/': x is damaged"):
            await made.payloads.get(REF)
        await store.change.remote([(REF, held)])
        await made.launcher.kill(PROBE)
        with pytest.raises(WorkerLost):
            await made.payloads.get(REF)
    ray_cluster.remove_node(node)


async def test_calls_that_come_together_while_a_worker_fails_are_lost_with_it(ray_cluster: RayCluster) -> None:
    """A workload that failed takes a while to close: who called it then was told that the port had failed for good."""
    async with opened(ray_cluster) as made:
        await made.launcher.launch(spec())

        async def lost() -> None:
            with pytest.raises(WorkerLost):
                await ask(made, "echo")

        with anyio.fail_after(60):
            await ask(made, "fail_slowly")
            while True:
                try:
                    await ask(made, "echo")
                except WorkerLost:
                    break
                async with anyio.create_task_group() as tasks:
                    for _ in range(4):
                        tasks.start_soon(_echo_or_lost, made)
            async with anyio.create_task_group() as tasks:
                for _ in range(4):
                    tasks.start_soon(lost)


async def _echo_or_lost(made: Backend) -> None:
    with suppress(WorkerLost):
        await ask(made, "echo")


async def test_a_node_that_is_gone_loses_its_workers_and_its_places_move(ray_cluster: RayCluster) -> None:
    """A placement group that is bound to a node that died stays pending for ever."""
    node = ray_cluster.add_node(num_cpus=3)
    async with opened(ray_cluster) as made:
        inventory = await made.placement.inventory()
        assert inventory.own_processes
        (name,) = [one.name for one in inventory.nodes if one.total.cpus == 3]
        asked = ReserveRequest(reservation_id=PROBE, resources=Resources(cpus=1), node=name)
        await made.placement.reserve(asked)
        await made.launcher.launch(spec())
        pid = int(await ask(made, "pid"))
        with Watched([pid]) as watched:
            ray_cluster.kill_node(node)
            with pytest.raises(WorkerLost), anyio.fail_after(60):
                await ask(made, "wait")
            await made.launcher.kill(PROBE)
            await made.launcher.launch(spec())
            assert watched.left(30.0) == set()
        assert int(await ask(made, "pid")) != pid
        nodes = (await made.placement.inventory()).nodes
        assert name not in [one.name for one in nodes]
        assert sum(one.total.cpus - one.free.cpus for one in nodes) == 1, "it holds elsewhere what it held"
        with pytest.raises(Infeasible) as refused:
            await made.placement.reserve(ReserveRequest(reservation_id="big", resources=Resources(cpus=3)))
        assert (refused.value.asked, refused.value.available) == (3, 2)


async def test_notice_that_a_node_goes_is_passed_on_and_nothing_is_placed_there(ray_cluster: RayCluster) -> None:
    """Ray starts nothing more on such a node and tells nobody: workers there were lost with it, unwarned."""
    node = ray_cluster.add_node(num_cpus=5)
    async with opened(ray_cluster) as made:
        (name,) = [one.name for one in (await made.placement.inventory()).nodes if one.total.cpus == 5]
        await made.placement.reserve(ReserveRequest(reservation_id=PROBE, resources=Resources(cpus=1), node=name))
        await made.launcher.launch(spec())
        assert not (await made.launcher.poll())[PROBE].leaving
        pid = await ask(made, "pid")
        ray_cluster.drain_node(node, within_s=600)
        with anyio.fail_after(60):
            while not (await made.launcher.poll())[PROBE].leaving:  # noqa: ASYNC110 - as those do who look after it
                await anyio.sleep(0.05)
        assert await ask(made, "pid") == pid, "it goes on until somebody ends it"
        await made.launcher.kill(PROBE)
        await made.launcher.launch(spec())
        assert not (await made.launcher.poll())[PROBE].leaving
        assert name not in [one.name for one in (await made.placement.inventory()).nodes]
    ray_cluster.kill_node(node)


async def test_an_object_ends_with_the_process_that_put_it_and_the_store_says_so(ray_cluster: RayCluster) -> None:
    """A group whose payload is gone is generated again; it is no reason to suspect whoever wanted to read it."""
    ref = PayloadRef(owner="p.1/L0/0/", key="group")
    async with opened(ray_cluster) as made:
        await made.payloads.put(ref, {"x": b"1"})
        assert await made.payloads.get(ref) == {"x": b"1"}
        holder = ray.remote(_Holder).remote()
        small, held = [await holder.put.remote(size) for size in (60_000, 200_000)]
        ray.kill(holder)
        await made.payloads._directory.change.remote([(ref, small)])  # pyright: ignore  # noqa: PGH003
        assert await made.payloads.get(ref) == {"x": b"x" * 60_000}, "what is small is no object"
        await made.payloads._directory.change.remote([(ref, held)])  # pyright: ignore  # noqa: PGH003
        with pytest.raises(WorkerLost, match="payload store"), anyio.fail_after(60):
            await _get_until_lost(made, ref)


async def _get_until_lost(made: Backend, ref: PayloadRef) -> None:
    while True:  # the process that holds it dies a little later
        await made.payloads.get(ref)


class _Holder:
    async def put(self, size: int) -> Held:
        return put_alone({"x": b"x" * size})


async def test_tensors_come_back_to_the_last_bit_from_the_store_itself(ray_cluster: RayCluster) -> None:
    torch = pytest.importorskip("torch")
    weights = {
        "w": torch.arange(300_000, dtype=torch.float32).reshape(300, 1000),
        "t": torch.ones(3, 4).t(),
        "half": torch.ones(5, dtype=torch.bfloat16),
        "none": torch.empty(0, 7),
        "one": torch.tensor(3),
    }
    ref = PayloadRef(owner="weights/1", key="parameters")
    async with opened(ray_cluster) as made:
        await made.payloads.put(ref, weights)
        got = await made.payloads.get(ref)
        assert {name: (one.dtype, one.shape) for name, one in got.items()} == {
            name: (one.dtype, one.shape) for name, one in weights.items()
        }
        assert all(torch.equal(got[name], one) for name, one in weights.items())
        again = await made.payloads.get(ref)
        assert got["w"].data_ptr() == again["w"].data_ptr(), "both lie where the store has them"
        await made.payloads.release("weights/")
        assert torch.equal(got["w"], weights["w"]), "whoever still reads keeps it"


async def test_only_what_changed_is_put_again(ray_cluster: RayCluster) -> None:
    """Adapters beside frozen parts: most of a model is as it was in the version before."""
    torch = pytest.importorskip("torch")
    weights = {
        "frozen": torch.arange(1 << 20, dtype=torch.float32),
        "moved": torch.ones(1 << 19),
        "small": torch.ones(4),
    }
    first, second = (PayloadRef(owner=f"weights/{version}/", key="parameters") for version in (1, 2))
    async with opened(ray_cluster) as made:
        store = made.payloads
        assert isinstance(store, RayPayloads)
        await store.put(first, weights)
        assert store.bytes_put == (1 << 22) + (1 << 21) + 16
        changed = {**weights, "moved": weights["moved"].clone()}
        changed["moved"][7] = 2.0
        await store.put(second, changed)
        assert store.bytes_put == (1 << 22) + 2 * (1 << 21) + 16
        before = (await store.get(first))["frozen"]
        await store.release("weights/1/")
        got = await store.get(second)
        assert all(torch.equal(got[name], one) for name, one in changed.items())
        assert got["frozen"].data_ptr() == before.data_ptr(), "it is the object that it was"
        for version in (3, 4):  # what moves is in other objects from now on, and what stays is where it was
            changed["moved"] = torch.full((1 << 19,), float(version))
            ref = PayloadRef(owner=f"weights/{version}/", key="parameters")
            await store.put(ref, changed)
            assert store.bytes_put == (1 << 22) + version * (1 << 21) + 16
            got = await store.get(ref)
            assert all(torch.equal(got[name], one) for name, one in changed.items())


async def test_mappings_that_are_put_at_once_are_each_what_was_given(ray_cluster: RayCluster) -> None:
    """One was taken for the other, whose put had ended meanwhile, and stood in for it in the engines."""
    torch = pytest.importorskip("torch")
    given = [{"w": torch.full((1 << 20,), float(number)), "b": torch.ones(number + 1)} for number in range(6)]
    refs = [PayloadRef(owner=f"weights/{number}/", key="parameters") for number in range(6)]
    async with opened(ray_cluster) as made:
        for _ in range(3):
            async with anyio.create_task_group() as tasks:
                for ref, value in zip(refs, given, strict=True):
                    tasks.start_soon(made.payloads.put, ref, value)
            for ref, value in zip(refs, given, strict=True):
                got = await made.payloads.get(ref)
                assert all(torch.equal(got[name], one) for name, one in value.items())


async def test_an_array_of_another_kind_is_not_what_it_was(ray_cluster: RayCluster) -> None:
    """The bytes are the same, and mean something else."""
    torch = pytest.importorskip("torch")
    zeros = torch.zeros(1 << 19)
    values = [{"w": zeros}, {"w": zeros.view(torch.int32)}, {"w": zeros.reshape(2, -1)}, {"w": zeros.clone()}]
    async with opened(ray_cluster) as made:
        for number, value in enumerate(values):
            ref = PayloadRef(owner=f"weights/{number}/", key="parameters")
            await made.payloads.put(ref, value)
            got = (await made.payloads.get(ref))["w"]
            assert (got.dtype, got.shape) == (value["w"].dtype, value["w"].shape)


async def test_what_a_killed_controller_left_on_a_cluster_that_goes_on_is_gone_with_the_next(
    ray_cluster: RayCluster,
) -> None:
    """``kill -9``: Ray ends the worker and gives its CPU back; what it had started held the node for ever."""
    node = ray_cluster.add_node(num_cpus=1)
    command = [sys.executable, "-m", "tests.support.doomed_ray", ray_cluster.address, str(node.node_id)[:12]]
    async with await anyio.open_process(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=None) as doomed:
        assert doomed.stdout is not None
        with anyio.fail_after(120):
            pid = int(await TextReceiveStream(doomed.stdout).receive())
        with Watched([pid]) as worker:
            doomed.kill()
            assert worker.left(30.0) == set()
        with Watched(carrying(f"ray-{ray_cluster.address}-")) as strays:
            assert len(strays.left(0.0)) == 2, "Ray does not know of them"
            async with opened(ray_cluster) as made:
                assert strays.left(0.0) == set()
                (there,) = [one for one in (await made.placement.inventory()).nodes if one.total.cpus == 1]
                assert there.free == there.total
                assert await made.payloads.owners() == frozenset()
    ray_cluster.remove_node(node)


async def test_where_nobody_answers_is_told_at_once() -> None:
    """Ray itself goes on asking for a minute."""
    cfg = backend.Config(address="127.0.0.1:1")
    with pytest.raises(PortFailed, match="no Ray cluster answers"), anyio.fail_after(10):
        async with backend.open(cfg, Site(job_dir="/")):
            pass


async def test_a_process_has_one_connection(ray_cluster: RayCluster) -> None:
    """A second one would end the first when it closes."""
    async with opened(ray_cluster):
        with pytest.raises(UserError, match="connected"):
            async with opened(ray_cluster):
                pass
        assert ray.is_initialized()
    assert not ray.is_initialized()


def test_options_that_cannot_work_are_refused_before_anything_starts() -> None:
    site = Site(job_dir="/")
    fields = {
        "backend.address": backend.Config(address="ray://10.0.0.1:10001"),
        "backend.folder": backend.Config(folder="/tmp/" + "long" * 10),  # noqa: S108
    }
    for field, cfg in fields.items():
        (problem,) = backend.check(cfg, site)
        assert problem.field == field
    assert list(backend.check(backend.Config(), site)) == []
