"""Starting, calling and ending a worker, cut at its awaits: whatever happens, nothing of it is left."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from backends import processes
from protocols.backend import WorkloadSpec
from protocols.messages import WorkerId
from protocols.sections import Section, Site
from tests.support.await_probe import AwaitProbe
from tests.support.leftovers import descriptors, marked, names_in
from tests.support.probe import KIND, asking

pytestmark = [pytest.mark.real_time, pytest.mark.slow, pytest.mark.timeout(170)]

PROBE = WorkerId("reward/0")
EVERY = 6
"""Which of the awaits are disturbed: each costs a process."""


async def _program(place: Path) -> None:
    spec = WorkloadSpec(
        worker_id=PROBE,
        section="reward",
        adapter=Section(kind=KIND),
        site=Site(job_dir="/"),
        reservation_id=PROBE,
    )
    cfg = processes.Config(payload_dir=str(place), patience_s=2.0)
    async with processes.open(cfg, Site(job_dir="/")) as backend:
        await backend.launcher.launch(spec)
        await backend.launcher.call(PROBE, "grade", (asking("echo", "x"),))
        await backend.launcher.kill(PROBE)
        await backend.launcher.launch(spec)
        await backend.launcher.call(PROBE, "grade", (asking("echo", "x"),))


def _run(place: Path, at: int | None, injection: str) -> int:
    """Run the program, disturbed at one await of its main task's tree; returns how many there were."""
    probe = AwaitProbe(at)

    def make_loop() -> asyncio.AbstractEventLoop:
        loop = asyncio.SelectorEventLoop()
        loop.set_task_factory(probe)
        return loop

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        with anyio.CancelScope() as scope:
            act: Callable[[], object] = scope.cancel if injection == "cancel_scope" else task.cancel
            with probe.acting(lambda: [act(), None][1]):
                await _program(place)

    try:
        anyio.run(main, backend_options={"loop_factory": make_loop})
    except asyncio.CancelledError:
        assert injection == "cancel_main"
    return len(probe.sites)


@pytest.mark.parametrize("injection", ["cancel_scope", "cancel_main"])
def test_nothing_is_left_wherever_it_is_cut(tmp_path: Path, injection: str) -> None:
    """W01, W15, I75: each step of a start, a call and an end; no process, no file, no descriptor."""
    before = descriptors()
    places = _run(tmp_path, None, injection)
    assert places > 50
    for at in range(1, places, EVERY):
        _run(tmp_path, at, injection)
        assert names_in(tmp_path) == [], at
        assert marked(tmp_path) == [], at
        assert descriptors() - before == set(), at
