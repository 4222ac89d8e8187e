"""A whole run, asked over its socket while it goes on."""

import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from backends.sim.trainer import ScriptedTrainer
from conductor.conductor import Conductor
from conductor.config import CheckpointConfig, RunConfig
from conductor.control.client import ask
from conductor.control.messages import Command, Reply, Request
from conductor.result import RunResult
from protocols.aio import open_tasks
from protocols.errors import PortFailed, Stopped
from tests.support.runs import open_backend_over, run_config, workloads_of
from tests.support.scripted.workloads import ScriptedWorkloads, scripted_workloads

pytestmark = pytest.mark.real_time

Asking = Callable[[Path, ScriptedWorkloads], Awaitable[None]]


def config(folder: Path, **fields: object) -> RunConfig:
    return run_config(steps=50, run_dir=str(folder), checkpoint=CheckpointConfig(every=0), **fields)


async def asked(folder: Path, command: Command) -> Reply:
    """Ask until somebody answers."""
    while True:
        reply = await anyio.to_thread.run_sync(lambda: ask(folder, Request(command=command), patience_s=20.0))
        if reply is not None:
            return reply
        await anyio.sleep(0.002)


async def run_and(asking: Asking, cfg: RunConfig, scripted: ScriptedWorkloads) -> RunResult:
    """Run a job, and let ``asking`` ask it meanwhile."""
    async with open_backend_over(scripted) as backend, open_tasks() as group:
        group.start_soon(asking, Path(str(cfg.run_dir)), scripted)
        with anyio.fail_after(30.0):
            result = await Conductor.run(cfg, backend=backend, workloads=workloads_of(scripted), control=True)
        group.cancel_scope.cancel()  # whoever still asks would ask for ever
        return result


def quick(**fields: object) -> ScriptedWorkloads:
    return scripted_workloads(200, **{"duration_s": lambda _: 0.01, "step_s": 0.01, **fields})  # type: ignore[arg-type]


async def test_a_run_says_where_it_stands_and_what_it_waits_for(tmp_path: Path) -> None:
    seen: list[Reply] = []

    async def look(folder: Path, _scripted: ScriptedWorkloads) -> None:
        while not seen or seen[-1].status is None or seen[-1].status.step < 1:
            seen.append(await asked(folder, "why"))

    result = await run_and(look, config(tmp_path), quick())
    assert result.steps == 50
    status, why = seen[-1].status, seen[-1].why
    assert status is not None
    assert (status.name, status.phase, status.steps, status.slots) == ("run", "training", 50, 2)
    assert status.accounts.balanced
    assert [engine.name for engine in status.engines] == ["engine/0"]
    assert why is not None
    assert why.waits_for


async def test_asking_without_pause_does_not_slow_a_run_down(tmp_path: Path) -> None:
    """A hostile client of the same user: it waits for its turn, and the run does not."""

    async def pester(folder: Path, _scripted: ScriptedWorkloads) -> None:
        for _ in range(5):
            await asked(folder, "status")

    began = anyio.current_time()
    await run_and(pester, config(tmp_path), quick())
    assert anyio.current_time() - began < 20.0


async def test_a_run_that_is_asked_to_stop_aborts_saves_and_says_so(tmp_path: Path) -> None:
    async def stop(folder: Path, scripted: ScriptedWorkloads) -> None:
        while not scripted.trainer.version:  # noqa: ASYNC110 - the trainer is no one's to wait for
            await anyio.sleep(0.002)
        assert (await asked(folder, "stop")).done == "stopping"

    scripted = quick(duration_s=lambda lease: math.inf if lease.prompt.position > 5 else 0.01)
    with pytest.raises(Stopped, match="run was asked to stop"):
        await run_and(stop, config(tmp_path), scripted)
    assert scripted.executor.live == frozenset()
    assert not scripted.payloads.held
    (saved,) = (tmp_path / "checkpoints").iterdir()
    assert saved.name == f"step-{scripted.trainer.version}"
    assert not (tmp_path / "control.sock").exists()


async def test_a_checkpoint_is_written_after_the_current_step(tmp_path: Path) -> None:
    paths: list[str] = []

    async def save(folder: Path, scripted: ScriptedWorkloads) -> None:
        while not scripted.trainer.version:  # noqa: ASYNC110
            await anyio.sleep(0.002)
        paths.append((await asked(folder, "checkpoint")).done)
        assert (Path(paths[0]) / "checkpoint.json").exists()

    result = await run_and(save, config(tmp_path), quick(step_s=0.05))
    assert result.steps == 50
    step = int(paths[0].rpartition("-")[2])
    assert 1 <= step < 50


async def test_a_checkpoint_that_was_being_written_is_not_taken_for_the_one_asked_for(tmp_path: Path) -> None:
    """Steps go on while one is written: what was trained by the time of asking is in the one that is named."""
    asked_at: list[int] = []
    paths: list[str] = []

    async def save(folder: Path, scripted: ScriptedWorkloads) -> None:
        while scripted.trainer.version < 4:  # noqa: ASYNC110
            await anyio.sleep(0.002)
        asked_at.append(scripted.trainer.version)
        paths.append((await asked(folder, "checkpoint")).done)

    scripted = quick()
    scripted = replace(scripted, trainer=ScriptedTrainer(scripted.payloads, step_s=0.05, save_s=0.3))
    cfg = run_config(steps=20, run_dir=str(tmp_path), checkpoint=CheckpointConfig(every=3))
    await run_and(save, cfg, scripted)
    assert int(paths[0].rpartition("-")[2]) >= asked_at[0]


async def test_many_that_wait_for_a_checkpoint_leave_room_for_others(tmp_path: Path) -> None:
    """They would take up every client that is attended to, for as long as a step takes."""
    refused: list[str] = []

    async def save(folder: Path, scripted: ScriptedWorkloads) -> None:
        async def one() -> None:
            with suppress(PortFailed):  # the run ended before it answered
                refused.append((await asked(folder, "checkpoint")).error)

        while not scripted.trainer.version:  # noqa: ASYNC110
            await anyio.sleep(0.002)
        async with anyio.create_task_group() as group:
            for _ in range(6):
                group.start_soon(one)
            while len(refused) < 2:  # noqa: ASYNC110
                await anyio.sleep(0.002)
            assert (await asked(folder, "status")).status is not None
            await asked(folder, "stop")

    scripted = quick(duration_s=lambda lease: math.inf if lease.prompt.position > 5 else 0.01)
    with pytest.raises(Stopped):
        await run_and(save, config(tmp_path), scripted)
    assert refused[:2] == ["4 others wait for a checkpoint already"] * 2


async def test_a_run_without_a_folder_or_that_was_not_asked_to_serves_nothing(tmp_path: Path) -> None:
    scripted = quick()
    async with open_backend_over(scripted) as backend:
        await Conductor.run(config(tmp_path), backend=backend, workloads=workloads_of(scripted))
    assert not (tmp_path / "control.sock").exists()
    scripted = quick()
    async with open_backend_over(scripted) as backend:
        await Conductor.run(run_config(), backend=backend, workloads=workloads_of(scripted), control=True)
