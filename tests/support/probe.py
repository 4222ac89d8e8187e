"""A workload that looks at its process and does to it what a test asks for."""

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import anyio
from anyio.lowlevel import checkpoint

from protocols.adapters import Host
from protocols.errors import Problem
from protocols.grading import GradeFault, GradeReport, GradeRequest, GraderPort
from protocols.inference import GenerateRequest, SampleRequest, Sampling
from protocols.messages import LeaseId, Message, PayloadRef
from protocols.prompts import Prompt, TextPrompt
from protocols.sections import Site

KIND = "tests.support.probe:Probe"

REF = PayloadRef(owner="p.1/L0/0/", key="group")

AT_IMPORT = f"{os.environ.get('PROBE')} {sorted(os.sched_getaffinity(0))}"


def asking(what: str, argument: str = "") -> GradeRequest:
    """Return the request that makes a probe do something; its answer is the detail of a fault."""
    prompt = Prompt(position=0, content=TextPrompt(text=what), fields={"argument": argument})
    return GradeRequest(lease_id=LeaseId("L0"), attempt=0, prompt=prompt, payload=REF, samples=())


def told(report: GradeReport) -> str:
    """Return what a probe answered."""
    (answer,) = report.grades
    assert isinstance(answer, GradeFault)
    return answer.detail


class ProbeConfig(Message, frozen=True, kw_only=True):
    """Options of a probe; ``stubborn`` ignores SIGTERM and everything else."""

    stubborn: bool = False


class ProbeGrader:
    """Does what the text of the prompt says."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.failed = anyio.Event()

    async def grade(self, request: GradeRequest) -> GradeReport:
        """Do it, and answer with a text."""
        assert isinstance(request.prompt.content, TextPrompt)
        act: Callable[[str], Awaitable[str]] = getattr(self, f"_{request.prompt.content.text}")
        detail = await act(request.prompt.fields["argument"])
        grades = (GradeFault(kind="raised", detail=detail),)
        return GradeReport(lease_id=request.lease_id, attempt=request.attempt, grades=grades)

    async def _pid(self, _: str) -> str:
        await checkpoint()
        return str(os.getpid())

    async def _collects(self, _: str) -> str:
        await checkpoint()
        return f"{gc.isenabled()} {gc.get_freeze_count() > 0}"

    async def _at_import(self, _: str) -> str:
        await checkpoint()
        return AT_IMPORT

    async def _variable(self, name: str) -> str:
        await checkpoint()
        return os.environ.get(name, "")

    async def _write(self, text: str) -> str:
        await checkpoint()
        print(text)  # noqa: T201 - as user code does
        sys.stderr.write(f"{text} on stderr\n")
        return ""

    async def _spawn(self, command: str) -> str:
        """Start a process in the group of this one and one in a group of its own; returns their numbers."""
        await checkpoint()
        started = [
            subprocess.Popen(command.split(), start_new_session=own)  # noqa: ASYNC220, S603
            for own in (False, True)
        ]
        return " ".join(str(process.pid) for process in started)

    async def _spawn_bare(self, command: str) -> str:
        """Start a process in the group of this one, without its environment."""
        await checkpoint()
        return str(subprocess.Popen(command.split(), env={}).pid)  # noqa: ASYNC220, S603

    async def _echo(self, text: str) -> str:
        await checkpoint()
        return text

    async def _wait(self, _: str) -> str:
        try:
            await anyio.sleep_forever()
        finally:
            sys.stderr.write("the call has ended\n")

    async def _block(self, _: str) -> str:
        await checkpoint()
        time.sleep(600)  # noqa: ASYNC251 - the point
        return ""

    async def _exit(self, code: str) -> str:
        await checkpoint()
        sys.stderr.write("going down\n")
        os._exit(int(code))

    async def _fail_slowly(self, _: str) -> str:
        await checkpoint()
        self.failed.set()
        return ""

    async def _fault(self, _: str) -> str:
        await checkpoint()
        os.kill(os.getpid(), signal.SIGSEGV)
        return ""

    async def _put(self, size: str) -> str:
        """Store as many bytes, as the payload ``REF``."""
        await self._host.payloads.put(REF, {"x": b"x" * int(size)})
        return ""

    async def _generate(self, request_id: str) -> str:
        """Generate on the engines that the controller serves; returns how much."""
        assert self._host.inference is not None, "there were no engines when this was launched"
        samples = (SampleRequest(request_id=request_id, stream="s"),)
        sampling = Sampling(max_tokens=4)
        generation = await self._host.inference.generate(
            GenerateRequest(prompt_ids=(1, 2), samples=samples, sampling=sampling)
        )
        return f"{len(generation.completions[0].token_ids)} tokens"


class Probe:
    """The adapter."""

    Config = ProbeConfig

    @staticmethod
    def check(cfg: ProbeConfig, site: Site) -> Sequence[Problem]:
        """Return nothing."""
        return ()

    @staticmethod
    @asynccontextmanager
    async def open(cfg: ProbeConfig, host: Host) -> AsyncGenerator[ProbeGrader]:
        """Open it."""
        await checkpoint()
        if cfg.stubborn:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        grader = ProbeGrader(host)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_fail, grader.failed)
                yield grader
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup:
            await anyio.sleep(1.0)
            raise
        await checkpoint()
        sys.stderr.write("closed in peace\n")


async def _fail(wanted: anyio.Event) -> None:
    await wanted.wait()
    raise RuntimeError("it failed")


_: type[GraderPort] = ProbeGrader
