"""A program that runs as long as the run does: ``command = ["./serve", "--port", "8000"]``."""

import os
import shutil
import signal
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from subprocess import DEVNULL
from typing import Annotated

import anyio
from anyio.abc import Process
from msgspec import Meta

from protocols.adapters import Host
from protocols.aio import open_tasks, owned
from protocols.errors import PortFailed, Problem
from protocols.messages import Message
from protocols.sections import Site

PATIENCE_S = 5.0
"""How long it may take to end after SIGTERM; then it is killed, and has as long again to be gone."""

_STDERR = 2
_EXEC = str(Path(__file__).with_name("_exec.py"))


class Config(Message, frozen=True, kw_only=True):
    """Options of a command.

    Attributes:
        command: The program and its arguments. It is looked up as a shell would, from the job's folder.
    """

    command: Annotated[tuple[str, ...], Meta(min_length=1)]


def check(cfg: Config, site: Site) -> Sequence[Problem]:
    """Find a program that is not there."""
    if _program(cfg, site) is not None:
        return ()
    why, mend = "there is no such program", "name one on the PATH, or a file that may be executed"
    return (Problem(field="role.command", value=repr(cfg.command[0]), why=why, mend=mend),)


def _program(cfg: Config, site: Site) -> str | None:
    name = cfg.command[0]
    return shutil.which(str(Path(site.job_dir) / name) if os.sep in name else name)


@asynccontextmanager
async def open(cfg: Config, host: Host) -> AsyncGenerator[object]:  # noqa: A001 - the adapters' common name
    """Start the program in the job's folder; it is ended with the block, and all that it started.

    What it prints goes to standard error. Nothing is called of it.

    Raises (into the block):
        PortFailed: It ended by itself.
    """
    program = _program(cfg, host.site)
    if program is None:
        raise PortFailed(f"there is no program {cfg.command[0]!r}")
    process = await anyio.open_process(
        [sys.executable, "-I", "-S", _EXEC, str(os.getpid()), program, *cfg.command[1:]],
        stdin=DEVNULL,
        stdout=_STDERR,
        stderr=None,
        cwd=host.site.job_dir,
        start_new_session=True,
    )
    try:
        async with open_tasks() as tasks:
            tasks.start_soon(owned, f"command {program}", lambda: _watch(process, program), name=f"command {program}")
            yield object()
            tasks.cancel_scope.cancel()
    finally:
        with anyio.move_on_after(2 * PATIENCE_S, shield=True):
            await _end(process)


async def _watch(process: Process, program: str) -> None:
    code = await process.wait()
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
    raise PortFailed(f"{program} {how}, and the run goes on")


async def _end(process: Process) -> None:
    _signal(process, signal.SIGTERM)
    with anyio.move_on_after(PATIENCE_S):
        await process.wait()
    _signal(process, signal.SIGKILL)
    await process.aclose()


def _signal(process: Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
