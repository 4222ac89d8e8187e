"""Rewards from a user's Python function.

::

    def reward(prompt, completion, answer):
        return float(completion.strip() == answer)

It is called by name with ``prompt`` (text, a list of ``{role, content}`` or a list of token ids, as the job
has it), ``completion`` (text) and those further fields of the prompt that it takes. It may be async. It
returns a number, a dict with ``reward`` and further numbers by name, or ``(reward, parts)``.

A function that is not async runs in the main thread of worker processes, so one that hangs or crashes
costs its completion alone, and ``signal.alarm`` works. ``cheap = true`` calls it on the event loop instead.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any

import anyio.to_thread
import msgspec
from msgspec import Meta

from backends._functions import FunctionNotFound, find_function
from backends.graders._on_loop import OnLoop
from backends.graders._pool import open_pool
from backends.graders._reward import Reward, Task
from protocols.adapters import Host
from protocols.backend import PayloadPort
from protocols.errors import PayloadLost, Problem, UserError, WorkerLost
from protocols.grading import Grade, GradeFault, GradeReport, GradeRequest, GraderPort
from protocols.messages import Message, PayloadRef
from protocols.prompts import ChatPrompt, PromptContent, TextPrompt, TokenPrompt
from protocols.rollouts import GroupPayload
from protocols.sections import Site

GradeTask = Callable[[Task], Awaitable[Sequence[Grade | GradeFault]]]
"""Grades the completions of one task, in order."""


class Config(Message, frozen=True, kw_only=True):
    """Options of ``[reward] kind = "function"``.

    Attributes:
        function: ``module:function`` or ``path.py:function``.
        cheap: Call it on the event loop. For microseconds of arithmetic: whatever it takes, the whole run
            waits, and a hang cannot be cut.
        workers: Most worker processes, for a function that is neither async nor cheap.
        deadline_s: For one completion.
        concurrency: Most calls at a time, for an async function.
    """

    function: str
    cheap: bool = False
    workers: Annotated[int, Meta(ge=1)] = 1
    deadline_s: Annotated[float, Meta(gt=0)] = 10.0
    concurrency: Annotated[int, Meta(ge=1)] = 64


class FunctionGrader:
    """Fetches the completions of a group and has them graded.

    Args:
        payloads: Where the groups lie.
        grade_task: What calls the user's function.
    """

    def __init__(self, payloads: PayloadPort, grade_task: GradeTask) -> None:
        self._payloads = payloads
        self._grade_task = grade_task

    async def grade(self, request: GradeRequest) -> GradeReport:
        """Grade every sample; see ``GraderPort.grade``."""
        group = await self._group(request.payload)
        task = Task(
            prompt=as_in_the_job(request.prompt.content),
            fields=request.prompt.fields,
            completions=[group.samples[sample].text for sample in request.samples],
        )
        grades = await self._grade_task(task)
        return GradeReport(lease_id=request.lease_id, attempt=request.attempt, grades=tuple(grades))

    async def _group(self, ref: PayloadRef) -> GroupPayload:
        try:
            group = await self._payloads.get(ref)
        except WorkerLost as exc:  # the payload is lost, not the grader
            raise PayloadLost(owner=ref.owner, cause=exc.cause) from exc
        if not isinstance(group, GroupPayload):
            raise PayloadLost(owner=ref.owner, cause=f"it is {type(group).__name__}, not a group")
        return group


def as_in_the_job(content: PromptContent) -> Any:
    """Return a prompt in the form in which the user wrote it."""
    match content:
        case TextPrompt(text=text):
            return text
        case TokenPrompt(token_ids=token_ids):
            return list(token_ids)
        case ChatPrompt(messages=messages):
            return msgspec.to_builtins(list(messages))


def check(cfg: Config, site: Site) -> Sequence[Problem]:
    """Return what is wrong with the function: it cannot be imported, or never be called."""
    try:
        why = Reward(find_function(cfg.function, site.job_dir)).impossible()
    except FunctionNotFound as exc:
        return [exc.problem("reward.function", cfg.function)]
    if why is None:
        return ()
    mend = "write it as def reward(prompt, completion, **fields)"
    return [Problem(field="reward.function", value=repr(cfg.function), why=why, mend=mend)]


@asynccontextmanager
async def open(cfg: Config, host: Host) -> AsyncGenerator[FunctionGrader]:  # noqa: A001 - the adapters' common name
    """Import the function off the loop and start what calls it; no process of it is left when the block ends.

    Raises:
        UserError: It cannot be imported.
    """
    job_dir = host.site.job_dir
    try:
        reward = Reward(await anyio.to_thread.run_sync(find_function, cfg.function, job_dir))
    except FunctionNotFound as exc:
        raise UserError(f"reward.function = {cfg.function!r}: {exc}") from exc
    if cfg.cheap or reward.is_async:
        on_loop = OnLoop(reward, deadline_s=cfg.deadline_s, concurrency=cfg.concurrency)
        yield FunctionGrader(host.payloads, on_loop.grade)
        return
    async with open_pool(cfg.function, job_dir, size=cfg.workers, deadline_s=cfg.deadline_s) as pool:
        yield FunctionGrader(host.payloads, pool.grade)


_: type[GraderPort] = FunctionGrader
