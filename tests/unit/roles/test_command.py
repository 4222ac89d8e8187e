"""A program that runs as long as the run does. It says through a pipe which processes there are, so nobody polls."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from backends import inproc
from backends.inproc.payloads import InprocPayloads
from backends.roles import command
from protocols.adapters import Host
from protocols.backend import WorkloadSpec
from protocols.errors import PortFailed
from protocols.messages import WorkerId
from protocols.sections import Section, Site
from tests.support.hosted import running

pytestmark = pytest.mark.real_time

JUDGE = WorkerId("judge/0")
PATIENCE_S = 30.0
TELL = "import os, time; open('pids', 'w').write(f'{os.getpid()} {pid}'); time.sleep(600)"
WITH_CHILD = f"import subprocess, sys; pid = subprocess.Popen(['sleep', '600']).pid; {TELL}"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); pid = ''; {TELL}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "pids")
    return tmp_path


def spec(folder: Path, *program: str) -> WorkloadSpec:
    return WorkloadSpec(
        worker_id=JUDGE,
        section="role",
        adapter=Section(kind="command", options={"command": list(program)}),
        site=Site(job_dir=str(folder)),
        reservation_id="judge/0",
    )


async def descriptors(folder: Path) -> list[int]:
    """Wait until the program runs; return a descriptor for each of its processes."""
    with anyio.fail_after(PATIENCE_S):
        said = await anyio.to_thread.run_sync((folder / "pids").read_text, abandon_on_cancel=True)
    return [os.pidfd_open(int(pid)) for pid in said.split()]


async def have_ended(processes: list[int]) -> None:
    """Wait for the end of processes."""
    for descriptor in processes:
        with anyio.fail_after(PATIENCE_S):
            await anyio.wait_readable(descriptor)
        os.close(descriptor)


@pytest.mark.parametrize("encode", [False, True])
async def test_a_program_ends_with_its_worker_and_so_does_all_that_it_started(folder: Path, encode: bool) -> None:
    """I75: what a run starts is not alive after it."""
    async with inproc.open(inproc.Config(encode_messages=encode), Site(job_dir="/")) as backend:
        await backend.launcher.launch(spec(folder, sys.executable, "-c", WITH_CHILD))
        processes = await descriptors(folder)
        assert len(processes) == 2
        assert await running(backend.launcher) == {JUDGE: True}
        await backend.launcher.kill(JUDGE)
        await have_ended(processes)


async def test_a_program_that_ends_by_itself_is_a_failure_that_says_how(folder: Path) -> None:
    """W14: what has died must not look as if it ran."""
    cfg = command.Config(command=(sys.executable, "-c", "raise SystemExit(3)"))
    host = Host(site=Site(job_dir=str(folder)), payloads=InprocPayloads())
    with pytest.RaisesGroup(pytest.RaisesExc(PortFailed, match="exited with 3")), anyio.fail_after(PATIENCE_S):
        async with command.open(cfg, host):
            await anyio.sleep_forever()


async def test_a_program_that_ignores_sigterm_is_killed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "PATIENCE_S", 0.2)
    async with inproc.open(inproc.Config(), Site(job_dir="/")) as backend:
        await backend.launcher.launch(spec(folder, sys.executable, "-c", STUBBORN))
        processes = await descriptors(folder)
        await backend.launcher.kill(JUDGE)
        await have_ended(processes)


async def test_a_program_that_is_not_there_is_no_worker(folder: Path) -> None:
    async with inproc.open(inproc.Config(), Site(job_dir="/")) as backend:
        with pytest.raises(PortFailed, match=r"no program './none'"):
            await backend.launcher.launch(spec(folder, "./none"))
        assert await backend.launcher.poll() == {}


def test_a_program_is_looked_up_from_the_folder_of_the_job(folder: Path) -> None:
    tool = folder / "tool"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    site = Site(job_dir=str(folder))
    assert command.check(command.Config(command=("./tool",)), site) == ()
    assert command.check(command.Config(command=("sh",)), site) == ()
    (problem,) = command.check(command.Config(command=("./other",)), site)
    assert problem.field == "role.command"


CONTROLLER = textwrap.dedent("""
    import sys
    import anyio
    from backends.inproc.payloads import InprocPayloads
    from backends.roles import command
    from protocols.adapters import Host
    from protocols.sections import Site

    async def main():
        cfg = command.Config(command=(sys.executable, "-c", sys.argv[2]))
        async with command.open(cfg, Host(site=Site(job_dir=sys.argv[1]), payloads=InprocPayloads())):
            await anyio.sleep_forever()

    anyio.run(main)
""")


async def test_a_program_dies_with_a_controller_that_is_killed(folder: Path) -> None:
    """W05: kill -9 of the controller runs no block's end."""
    arguments = [sys.executable, "-c", CONTROLLER, str(folder), f"pid = ''; {TELL}"]
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    controller = subprocess.Popen(arguments, env={**os.environ, "PYTHONPATH": path})  # noqa: ASYNC220, S603
    try:
        processes = await descriptors(folder)
    finally:
        controller.kill()
        controller.wait()
    await have_ended(processes)
