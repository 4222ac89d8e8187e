"""Worker processes: what they find, what ends them, and that nothing of them is left."""

import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from anyio.lowlevel import checkpoint

from backends import processes
from backends.processes import child
from protocols.backend import Backend, WorkloadSpec
from protocols.errors import PortFailed, Transient, WorkerLost
from protocols.inference import GenerateRequest, Generation, WeightsManifest
from protocols.messages import PayloadRef, WeightVersion, WorkerId
from protocols.sections import Section, Site
from tests.support import hosted
from tests.support.hosted import running
from tests.support.leftovers import descriptors, marked, names_in
from tests.support.pids import Watched
from tests.support.probe import KIND, asking, told
from tests.support.scripted.inference import ScriptedInference

pytestmark = pytest.mark.real_time

PROBE = WorkerId("reward/0")
SLEEP = "sleep 600"


@pytest.fixture(autouse=True)
def _nothing_is_left(tmp_path: Path) -> Generator[None]:
    """I75, W01: no process, no descriptor, no folder, whatever a test did."""
    before = descriptors()
    yield
    assert descriptors() - before == set()
    assert names_in(tmp_path) in ([], ["run"])
    assert marked(tmp_path) == []


def spec(worker_id: WorkerId = PROBE, *, run_dir: Path | None = None, **fields: object) -> WorkloadSpec:
    site = Site(job_dir="/", run_dir=None if run_dir is None else str(run_dir))
    options = fields.pop("options", {})
    return WorkloadSpec(
        worker_id=worker_id,
        section="reward",
        adapter=Section(kind=str(fields.pop("kind", KIND)), options=dict(options)),  # pyright: ignore[reportArgumentType]
        site=site,
        reservation_id=worker_id,
        **fields,  # pyright: ignore[reportArgumentType]
    )


@asynccontextmanager
async def opened(folder: Path, **options: float) -> AsyncGenerator[Backend]:
    cfg = processes.Config(payload_dir=str(folder), **{"patience_s": 5.0, **options})  # pyright: ignore[reportArgumentType]
    async with processes.open(cfg, Site(job_dir="/")) as backend:
        yield backend


async def ask(backend: Backend, what: str, argument: str = "", worker_id: WorkerId = PROBE) -> str:
    return told(await backend.launcher.call(worker_id, "grade", (asking(what, argument),)))


async def test_a_worker_that_is_open_collects_its_garbage_and_not_what_it_imported(tmp_path: Path) -> None:
    """Nothing is collected while it starts; left so, it would grow for as long as it lives."""
    async with opened(tmp_path) as backend:
        await backend.launcher.launch(spec())
        assert await ask(backend, "collects") == "True True"


async def test_a_worker_lives_in_a_process_and_a_group_of_its_own(tmp_path: Path) -> None:
    async with opened(tmp_path) as backend:
        await backend.launcher.launch(spec())
        pid = int(await ask(backend, "pid"))
        assert pid != os.getpid()
        assert os.getpgid(pid) == os.getsid(pid) == pid
        with Watched([pid]) as watched:
            await backend.launcher.kill(PROBE)
            assert watched.left(0) == set(), "it has ended when kill returns"


async def test_cpus_and_environment_are_set_before_anything_is_imported(tmp_path: Path) -> None:
    """torch counts its CPUs and reads its variables once, when it is imported."""
    cpu = min(os.sched_getaffinity(0))
    async with opened(tmp_path) as backend:
        await backend.launcher.launch(spec(cpus=(cpu,), environment={"PROBE": "set"}))
        assert await ask(backend, "at_import") == f"set [{cpu}]"


async def test_threads_follow_the_cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes with a thread for each core, on two cores: 570 ms a step instead of 88."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    asked = {
        "bound": (spec(WorkerId("bound"), cpus=cpus[:1]), "1"),
        "sharing": (spec(WorkerId("sharing")), str(max(1, len(cpus) // 2))),
        "told": (spec(WorkerId("told"), environment={"OMP_NUM_THREADS": "7"}), "7"),
    }
    async with opened(tmp_path, compute_processes=2) as backend:
        for name, (one, threads) in asked.items():
            await backend.launcher.launch(one)
            assert await ask(backend, "variable", "OMP_NUM_THREADS", WorkerId(name)) == threads


async def test_a_worker_sees_the_accelerators_that_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The numbers of a plan count what the operator left visible, and CUDA counts what the worker sees."""
    monkeypatch.setattr(child, "accelerators", lambda: ("2", "5", "7"))
    async with opened(tmp_path) as backend:
        await backend.launcher.launch(spec(devices=(2, 0)))
        assert await ask(backend, "variable", "CUDA_VISIBLE_DEVICES") == "7,2"


async def test_a_kill_from_outside_is_told_at_once(tmp_path: Path) -> None:
    """I03, I04: the caller in the worker learns it, and how it ended, not at a deadline."""
    async with opened(tmp_path) as backend, anyio.create_task_group() as tasks:
        await backend.launcher.launch(spec())
        pid = int(await ask(backend, "pid"))

        async def call() -> None:
            with pytest.raises(WorkerLost, match="killed by SIGKILL"):
                await ask(backend, "wait")

        with anyio.fail_after(10):
            async with anyio.create_task_group() as callers:
                callers.start_soon(call)
                callers.start_soon(call)
                await anyio.wait_all_tasks_blocked()
                os.kill(pid, signal.SIGKILL)
        assert await running(backend.launcher) == {PROBE: False}
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("what", "argument", "how"),
    [("exit", "3", r"it exited with 3(?s:.)*going down"), ("fault", "", r"SIGSEGV(?s:.)*Segmentation fault")],
)
async def test_a_crash_is_told_with_its_last_words(tmp_path: Path, what: str, argument: str, how: str) -> None:
    async with opened(tmp_path) as backend:
        await backend.launcher.launch(spec())
        with pytest.raises(WorkerLost, match=how):
            await ask(backend, what, argument)


@pytest.mark.parametrize("state", ["stopped", "blocked"])
async def test_a_worker_that_stands_still_is_found_by_its_heartbeat(tmp_path: Path, state: str) -> None:
    """It holds its resources and answers nobody, and no exit code ever says so."""
    async with opened(tmp_path, heartbeat_s=1.5) as backend:
        await backend.launcher.launch(spec())
        pid = int(await ask(backend, "pid"))

        async def call() -> None:
            with pytest.raises(WorkerLost, match=r"did not answer for 1\.5 s"):
                await ask(backend, "block" if state == "blocked" else "wait")

        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call)
                await anyio.wait_all_tasks_blocked()
                if state == "stopped":
                    os.kill(pid, signal.SIGSTOP)
        assert await running(backend.launcher) == {PROBE: False}


async def test_a_worker_that_only_works_is_left_alone(tmp_path: Path) -> None:
    async with opened(tmp_path, heartbeat_s=3.0) as backend:
        await backend.launcher.launch(spec())
        with anyio.move_on_after(6) as scope:
            await ask(backend, "wait")
        assert scope.cancelled_caught
        assert await running(backend.launcher) == {PROBE: True}


@pytest.mark.parametrize("state", ["stubborn", "stopped"])
async def test_what_does_not_close_is_killed(tmp_path: Path, state: str) -> None:
    """W14: first asked, then forced."""
    async with opened(tmp_path, patience_s=0.5) as backend:
        await backend.launcher.launch(spec(options={"stubborn": state == "stubborn"}))
        pid = int(await ask(backend, "pid"))
        with Watched([pid]) as watched, anyio.fail_after(10):
            if state == "stopped":
                os.kill(pid, signal.SIGSTOP)
            await backend.launcher.kill(PROBE)
            assert watched.left(0) == set()


async def test_what_a_worker_started_ends_with_it(tmp_path: Path) -> None:
    """An engine's own processes hold the accelerator for whoever comes next, also those in another session."""
    async with opened(tmp_path) as backend:
        await backend.launcher.launch(spec())
        pids = [int(pid) for what in ("spawn", "spawn_bare") for pid in (await ask(backend, what, SLEEP)).split()]
        assert len(pids) == 3
        with Watched(pids) as watched:
            await backend.launcher.kill(PROBE)
            assert watched.left(0) == set()


async def test_a_workers_neighbour_is_not_touched(tmp_path: Path) -> None:
    """Killing one worker changes no other's process; ``reward/1`` is not ``reward/10``."""
    names = [WorkerId(f"reward/{number}") for number in range(12)]
    async with opened(tmp_path) as backend:
        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(backend.launcher.launch, spec(name))
        pids = [await ask(backend, "pid", worker_id=name) for name in names]
        await backend.launcher.kill(names[1])
        del names[1], pids[1]
        assert [await ask(backend, "pid", worker_id=name) for name in names] == pids


async def test_what_workers_write_is_kept_under_their_names(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    async with opened(tmp_path) as backend:
        await backend.launcher.launch(spec(run_dir=run_dir))
        await ask(backend, "write", "line one\nline two")
        await backend.launcher.kill(PROBE)
    lines = await anyio.Path(run_dir / "logs" / "reward-0.log").read_text()
    written = ("line one", "line two", "line one", "line two on stderr", "closed in peace")
    assert lines.splitlines() == [f"reward/0 | {text}" for text in written]


async def test_a_worker_closes_in_peace_when_nothing_runs_in_it_any_more(tmp_path: Path) -> None:
    """W19: what it holds is given back after the last call has left, and not under a cancellation."""
    run_dir = tmp_path / "run"
    async with opened(tmp_path) as backend:
        await backend.launcher.launch(spec(run_dir=run_dir))
        pid = int(await ask(backend, "pid"))

        async def call() -> None:
            with pytest.raises(WorkerLost, match="it exited with 0"):
                await ask(backend, "wait")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await checkpoint()
            await ask(backend, "echo", "the other call is there by now")
            os.kill(pid, signal.SIGTERM)
    lines = await anyio.Path(run_dir / "logs" / "reward-0.log").read_text()
    assert lines.splitlines() == ["reward/0 | the call has ended", "reward/0 | closed in peace"]


async def test_notice_of_a_preemption_is_passed_on_and_ends_nothing(tmp_path: Path) -> None:
    """Issue E: a preemption notice drains first, so who gets it must go on working."""
    async with opened(tmp_path) as backend:
        await backend.launcher.launch(spec())
        pid = int(await ask(backend, "pid"))
        assert not (await backend.launcher.poll())[PROBE].leaving
        os.kill(pid, signal.SIGUSR1)
        with anyio.fail_after(30):
            while not (await backend.launcher.poll())[PROBE].leaving:
                await ask(backend, "echo", "it is there and answers")
        assert int(await ask(backend, "pid")) == pid


async def test_without_a_folder_they_go_to_stderr(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async with opened(tmp_path) as backend:
        await backend.launcher.launch(spec())
        await ask(backend, "write", "hello")
        await backend.launcher.kill(PROBE)
    assert "reward/0 | hello\n" in capfd.readouterr().err


class Engines(ScriptedInference):
    """Engines that serve, and say when a request begins and ends."""

    def __init__(self, token_s: float = 0.0) -> None:
        super().__init__(token_s=token_s)
        self.began, self.ended = anyio.Event(), anyio.Event()

    async def generate(self, request: GenerateRequest) -> Generation:
        """Generate."""
        self.began.set()
        try:
            return await super().generate(request)
        finally:
            self.ended.set()


@asynccontextmanager
async def serving(folder: Path, engines: Engines) -> AsyncGenerator[Backend]:
    ref = PayloadRef(owner="weights/0", key="v0")
    await engines.publish(WeightsManifest(version=WeightVersion(0), payload=ref, tensors=0, size_bytes=0))
    async with opened(folder) as backend:
        await backend.launcher.launch(spec(WorkerId("early")))
        await backend.launcher.serve("engines", engines)
        await backend.launcher.launch(spec())
        yield backend


async def test_a_worker_reaches_the_engines_through_the_controller(tmp_path: Path) -> None:
    async with serving(tmp_path, Engines()) as backend:
        assert await ask(backend, "generate", "policy.1/L0/0/0/0") == "4 tokens"
        with pytest.raises(PortFailed, match="there were no engines when this was launched"):
            await ask(backend, "generate", "policy.1/L0/0/0/1", WorkerId("early"))


@pytest.mark.parametrize("how", ["cancelled", "killed"])
async def test_a_request_ends_with_whoever_made_it(tmp_path: Path, how: str) -> None:
    """I21: its rollout was given up, and the engine went on with it."""
    engines = Engines(token_s=3600)
    async with serving(tmp_path, engines) as backend:
        pid = int(await ask(backend, "pid"))

        async def generate() -> None:
            try:
                await ask(backend, "generate", "policy.1/L0/0/0/0")
            except WorkerLost:
                assert how == "killed"

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(generate)
            await engines.began.wait()
            if how == "cancelled":
                tasks.cancel_scope.cancel()
            else:
                os.kill(pid, signal.SIGKILL)
        with anyio.fail_after(20):
            await engines.ended.wait()
        assert await engines.live_requests() == frozenset()


async def test_a_huge_message_goes_there_and_back(tmp_path: Path) -> None:
    text = "0123456789" * 3_000_000
    async with opened(tmp_path) as backend:
        await backend.launcher.launch(spec())
        assert await ask(backend, "echo", text) == text


async def test_a_worker_that_breaks_the_protocol_is_ended(tmp_path: Path) -> None:
    """What it would say next cannot be read, and nobody would ever wait for it in vain."""
    async with opened(tmp_path, patience_s=0.5) as backend:
        await backend.launcher.launch(spec())
        worker = backend.launcher._workers[PROBE]  # pyright: ignore[reportAttributeAccessIssue]
        worker._child.socket.send(b"print('hello') where a frame belongs, and some more")
        with anyio.fail_after(20), pytest.raises(WorkerLost):
            await ask(backend, "wait")
        assert await running(backend.launcher) == {PROBE: False}


async def test_no_room_for_a_process_may_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """W01: a start that fails at its first step holds nothing, and its id is free."""
    async with opened(tmp_path) as backend:
        with monkeypatch.context() as patched:
            patched.setattr(sys, "executable", "/no/such/python")
            with pytest.raises(Transient, match="no process can be started"):
                await backend.launcher.launch(spec())
        assert await backend.launcher.poll() == {}
        await backend.launcher.launch(spec())


async def test_a_process_that_ends_while_it_opens_is_told(tmp_path: Path) -> None:
    """W18: liveness is watched during start-up too."""
    async with opened(tmp_path) as backend:
        with pytest.raises(PortFailed, match="could not be opened: ProcessEnded: it exited with 1"):
            await backend.launcher.launch(spec(kind=hosted.KIND, options={"opening": "leaks"}))
        with pytest.raises(PortFailed, match="Invalid argument"):
            await backend.launcher.launch(spec(cpus=(4095,)))


async def test_the_place_of_a_cancelled_backend_is_empty(tmp_path: Path) -> None:
    """W15: a run cancelled while it starts, at whatever step."""
    for deadline_s in (0.0, 0.01, 0.1, 0.3, 0.6):
        with anyio.move_on_after(deadline_s):
            async with opened(tmp_path) as backend:
                await backend.launcher.launch(spec())
                await backend.launcher.launch(
                    spec(WorkerId("reward/1"), kind=hosted.KIND, options={"opening": "hangs"})
                )
        assert names_in(tmp_path) == []


async def test_a_cancelled_run_finds_its_workers_alive(tmp_path: Path) -> None:
    """DESIGN.md, abort: what is cancelled aborts its leased work under a shield, and asks the workers to do it."""
    answered: list[str] = []
    with anyio.CancelScope() as scope:
        async with opened(tmp_path) as backend:
            await backend.launcher.launch(spec())
            try:
                scope.cancel()
                await anyio.sleep_forever()
            finally:
                with anyio.move_on_after(20, shield=True):
                    await anyio.sleep(0.1)
                    answered.append(await ask(backend, "echo", "still here"))
    assert scope.cancelled_caught
    assert answered == ["still here"]


async def test_this_machine_is_one_node(tmp_path: Path) -> None:
    async with opened(tmp_path) as backend:
        (node,) = (await backend.placement.inventory()).nodes
        assert node.total == node.free
        assert node.cpus == tuple(sorted(os.sched_getaffinity(0)))


def test_the_options_are_checked(tmp_path: Path) -> None:
    site = Site(job_dir=str(tmp_path))
    assert processes.check(processes.Config(), site) == []
    (problem,) = processes.check(processes.Config(payload_dir="nowhere"), site)
    assert problem.field == "backend.payload_dir"
    assert processes.check(processes.Config(payload_dir="."), site) == []


async def test_without_a_place_for_bulk_data_nothing_begins() -> None:
    with pytest.raises(PortFailed, match="no place for bulk data in /proc"):
        async with opened(Path("/proc")):
            pass


async def test_a_worker_ends_with_its_channel_too(tmp_path: Path) -> None:
    """The second line of defence: where the parent lives but has let go of it."""
    async with opened(tmp_path, patience_s=20.0) as backend:
        await backend.launcher.launch(spec())
        pid = int(await ask(backend, "pid"))
        worker = backend.launcher._workers[PROBE]  # pyright: ignore[reportAttributeAccessIssue]
        with Watched([pid]) as watched:
            worker._child.socket.shutdown(socket.SHUT_RDWR)
            assert await anyio.to_thread.run_sync(watched.left, 10.0) == set(), "by itself, long before it is killed"
